"""What the commands call: the doors by which tests let stand-ins in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autofit import api, gpus, session
from autofit.card_plans import Card
from autofit.checking import run_check
from autofit.comparing import compare_workloads
from autofit.conv_layers import find_conv_layers
from autofit.explain.profile import Profile
from autofit.report.check import CheckResult
from autofit.report.compare import Comparison
from autofit.report.conv_layers import ConvLayers
from autofit.report.estimate import Estimate
from autofit.report.result import TuneResult
from autofit.service.events import EventSink
from autofit.settings import TuneSettings
from workers.protocol import WorkloadRef

if TYPE_CHECKING:
    from autofit.doctor import Check


def tune(settings: TuneSettings, workload: WorkloadRef, emit: EventSink) -> TuneResult:
    """Searches; see `autofit.session.run`."""
    return session.run(settings, workload, emit=emit)


def estimate(settings: TuneSettings, workload: WorkloadRef, batch_size: int, emit: EventSink) -> Estimate:
    """Predicts one configuration."""
    predictor = session.local_predictor(workload, mode=settings.mode, emit=emit)
    card = api.card_named(None if settings.gpu is None else settings.gpu.key)
    knobs = settings.knobs(settings.one_conv_algo("an estimate"))
    return predictor.estimate(knobs, card, batch_size)


def profile(settings: TuneSettings, workload: WorkloadRef, batch_size: int, emit: EventSink) -> Profile:
    """Predicts one configuration, with all that the views need."""
    predictor = session.local_predictor(
        workload, mode=settings.mode, emit=emit, with_tensors=True, with_calls=True
    )
    card = api.card_named(None if settings.gpu is None else settings.gpu.key)
    return predictor.profile(settings.knobs(settings.one_conv_algo("a profile")), card, batch_size)


def check(settings: TuneSettings, workload: WorkloadRef, batch_size: int, emit: EventSink) -> CheckResult:
    """Holds the prediction of one configuration against its budget."""
    return run_check(settings, session.local_predictor(workload, mode=settings.mode, emit=emit), batch_size)


def compare(
    settings: TuneSettings, workloads: Sequence[WorkloadRef], batch_size: int, emit: EventSink
) -> Comparison:
    """Holds forward passes of several workloads against each other."""
    return compare_workloads(
        workloads,
        batch_size=batch_size,
        card=api.card_named(None if settings.gpu is None else settings.gpu.key),
        emit=emit,
    )


def conv_layers(
    workload: WorkloadRef, batch_size: int, card: Card | None, mode: str | None, emit: EventSink
) -> ConvLayers:
    """What each convolution algorithm takes for a model's layers."""
    return find_conv_layers(workload, batch_size=batch_size, card=card, mode=mode, emit=emit)


def examine() -> tuple[Check, ...]:
    """The checks of `autofit doctor`."""
    from autofit import doctor

    return doctor.examine()


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The functions behind the commands."""

    tune: Callable[[TuneSettings, WorkloadRef, EventSink], TuneResult] = tune
    estimate: Callable[[TuneSettings, WorkloadRef, int, EventSink], Estimate] = estimate
    profile: Callable[[TuneSettings, WorkloadRef, int, EventSink], Profile] = profile
    check: Callable[[TuneSettings, WorkloadRef, int, EventSink], CheckResult] = check
    compare: Callable[[TuneSettings, Sequence[WorkloadRef], int, EventSink], Comparison] = compare
    conv_layers: Callable[[WorkloadRef, int, Card | None, str | None, EventSink], ConvLayers] = conv_layers
    local_gpus: Callable[[], tuple[gpus.LocalGpu, ...]] = gpus.local_gpus
    examine: Callable[[], tuple[Check, ...]] = examine
