"""Checks: one configuration held against one budget, from one trace."""

from __future__ import annotations

from collections.abc import Mapping

from autofit.dispatch.base import Devices
from autofit.errors import UsageError
from autofit.hardware import gpus
from autofit.predict.predictor import Predictor
from autofit.report.check import CheckResult, check_curve
from autofit.settings.target import resolve_target
from autofit.settings.tune_settings import TuneSettings, resolve_settings

# What `autofit tune` can be told and a single prediction has no use for.
_OF_A_SEARCH = frozenset(
    {
        "device",
        "probe",
        "max_batch",
        "risk",
        "search",
        "storage",
        "study",
        "address",
        "fresh",
        "metrics_port",
        "metrics_host",
        "deadline",
        "objective",
        "soak_steps",
        "max_trials",
        "max_seconds",
        "storage_wait",
        "resources",
        "node_wait",
        "threads",
    }
)


def check_settings(options: Mapping[str, object]) -> TuneSettings:
    """The settings of a check: of one algorithm, PyTorch's default unless named, and predicted.

    Raises:
        UsageError: an option is wrong, or means something to a search alone.
    """
    if misplaced := sorted(options.keys() & _OF_A_SEARCH):
        raise UsageError(f"a check takes no {', '.join(misplaced)}: it predicts one configuration")
    settings = resolve_settings({**options, "probe": "predict"}, {}, None)
    settings.one_conv_algo("a check")
    return settings


def run_check(settings: TuneSettings, predictor: Predictor, batch_size: int) -> CheckResult:
    """Predicts the configuration of `check_settings` and holds it against its budget.

    Raises:
        UsageError: no card is named and none is here.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    target = resolve_target(settings, local_gpus=gpus.local_gpus, reachable=_nothing_to_measure_on)
    knobs = settings.knobs(settings.one_conv_algo("a check"))
    curve = predictor.curve_at(knobs, target.card, batch_size)
    return check_curve(curve, batch_size, target.budget, target.device)


def _nothing_to_measure_on() -> Devices:
    raise AssertionError("a check asks for no measurement")
