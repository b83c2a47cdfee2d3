"""Resolves `--model` and `--script` to a workload reference that can be sent to other processes."""

from __future__ import annotations

from autofit.errors import UnknownModelError, UsageError
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.protocol import ScriptCall, WorkloadRef
from autofit_workers.spec.workloads.references import UnknownWorkloadError, WorkloadError, parse_reference
from autofit_workers.spec.workloads.scripts import Script


def refer(text: str, settings: TuneSettings | None = None) -> WorkloadRef:
    """Reference to a workload, which other processes can load; no code of the workload is imported here.

    Args:
        text: name of the model, such as `gpt2`, `timm:resnet50` or `file.py:function`.
        settings: settings with a script, which is then referred to, or with the shape, classes and task of a
            sample; None if there are none.

    Raises:
        UnknownModelError: no such model; the message suggests similar names.
        UsageError: the reference is malformed, its file is missing, or the settings conflict with a script.
    """
    try:
        if settings is None:
            return parse_reference(text)
        if settings.script is not None:
            return _script_of(settings).reference()
        return parse_reference(
            text,
            input_shape=settings.input_shape,
            num_classes=settings.num_classes,
            task=settings.task,
        )
    except UnknownWorkloadError as error:
        raise UnknownModelError(str(error)) from error
    except WorkloadError as error:
        raise UsageError(str(error)) from error


def _script_of(settings: TuneSettings) -> Script:
    """Script that the settings name, with its arguments and ranks.

    Raises:
        UsageError: another option is given that a script decides by itself, such as `--input`.
    """
    assert settings.script is not None
    if settings.says_of_a_sample:
        raise UsageError("a script makes its own batches: leave out --input, --classes and --task")
    require_its_own(settings)
    return Script(
        path=settings.script,
        arguments=settings.script_arguments,
        batch_argument=settings.batch_argument,
        batch_variable=settings.batch_variable,
        batch_name=settings.batch_name,
        keeps_trackers=settings.keeps_trackers,
        launcher=settings.launcher,
        num_processes=settings.num_processes,
        num_nodes=settings.num_nodes,
    )


def require_its_own(settings: TuneSettings) -> None:
    """Checks that no settings are given that a script decides by itself, such as the precision.

    Raises:
        UsageError: such a setting is given.
    """
    why = ScriptCall.why_not(settings.knobs, settings.setup)
    if why is not None:
        raise UsageError(why)
