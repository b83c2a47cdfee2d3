"""autofit: the largest batch that fits your GPU, with the settings that make it fit, and the evidence.

    >>> import autofit
    >>> result = autofit.tune("davenet", gpu_mem="16G")
    >>> result.best.batch_size, result.best.knobs.conv_algo

A workload is a built-in's name, `package.module:attribute`, `path/file.py:attribute`, or an object:

    >>> workload = autofit.Workload(build_model=..., make_batch=..., loss=..., optimizer="adam")
    >>> autofit.estimate(workload, batch_size=128).peak_reserved_bytes

or a training script as it is, which says how it takes its batch size:

    >>> script = autofit.Script(path="train.py", batch_argument="--batch-size")
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from autofit import errors
from autofit_workers.installation import namesake

if TYPE_CHECKING:
    from autofit.api import check, estimate, kv, observe, peak_curve, peak_surface, tune
    from autofit.predict.curve import PredictedCurve
    from autofit.predict.estimate import Breakdown, Estimate, Interval
    from autofit.predict.sizes.surface import PredictedSurface
    from autofit.questions.check import CheckResult
    from autofit.questions.kv import KvCache
    from autofit.questions.real_runs.observe import ObservedPeak
    from autofit.questions.real_runs.observed_run import ObservedRun
    from autofit.settings.lengths import BatchLengths, worst_case_lengths
    from autofit.training.apply import adapt, apply_conv_algo, checkpoint_blocks, hidden_weights, set_loss
    from autofit.training.find_batch_size import find_executable_batch_size
    from autofit.training.kernels import register_kernel
    from autofit.training.observed import RunObserver, observed
    from autofit.training.probe_step import StepPeak, probe_step
    from autofit.tuning.found import Best, FrontierEntry
    from autofit.tuning.result import TuneResult
    from autofit_workers.spec.knobs import Knobs
    from autofit_workers.spec.workloads.scripts import Script
    from autofit_workers.workload.workload import Workload

__all__ = [
    "BatchLengths",
    "Best",
    "Breakdown",
    "CheckResult",
    "Estimate",
    "FrontierEntry",
    "Interval",
    "Knobs",
    "KvCache",
    "ObservedPeak",
    "ObservedRun",
    "PredictedCurve",
    "PredictedSurface",
    "RunObserver",
    "Script",
    "StepPeak",
    "TuneResult",
    "Workload",
    "adapt",
    "apply_conv_algo",
    "check",
    "checkpoint_blocks",
    "errors",
    "estimate",
    "find_executable_batch_size",
    "hidden_weights",
    "kv",
    "observe",
    "observed",
    "peak_curve",
    "peak_surface",
    "probe_step",
    "register_kernel",
    "set_loss",
    "tune",
    "worst_case_lengths",
]

# Module of each public name, imported when the name is first used, so that a command can start the process
# of its predictions before it imports the rest.
_PLACES = {
    "BatchLengths": "autofit.settings.lengths",
    "Best": "autofit.tuning.found",
    "Breakdown": "autofit.predict.estimate",
    "CheckResult": "autofit.questions.check",
    "Estimate": "autofit.predict.estimate",
    "FrontierEntry": "autofit.tuning.found",
    "Interval": "autofit.predict.estimate",
    "Knobs": "autofit_workers.spec.knobs",
    "KvCache": "autofit.questions.kv",
    "ObservedPeak": "autofit.questions.real_runs.observe",
    "ObservedRun": "autofit.questions.real_runs.observed_run",
    "PredictedCurve": "autofit.predict.curve",
    "PredictedSurface": "autofit.predict.sizes.surface",
    "RunObserver": "autofit.training.observed",
    "Script": "autofit_workers.spec.workloads.scripts",
    "StepPeak": "autofit.training.probe_step",
    "TuneResult": "autofit.tuning.result",
    "Workload": "autofit_workers.workload.workload",
    "adapt": "autofit.training.apply",
    "apply_conv_algo": "autofit.training.apply",
    "check": "autofit.api",
    "checkpoint_blocks": "autofit.training.apply",
    "estimate": "autofit.api",
    "find_executable_batch_size": "autofit.training.find_batch_size",
    "hidden_weights": "autofit.training.apply",
    "kv": "autofit.api",
    "observe": "autofit.api",
    "observed": "autofit.training.observed",
    "peak_curve": "autofit.api",
    "peak_surface": "autofit.api",
    "probe_step": "autofit.training.probe_step",
    "register_kernel": "autofit.training.kernels",
    "set_loss": "autofit.training.apply",
    "tune": "autofit.api",
    "worst_case_lengths": "autofit.settings.lengths",
}


_namesake = namesake()
if _namesake is not None:
    warnings.warn(_namesake, stacklevel=2)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'autofit' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
