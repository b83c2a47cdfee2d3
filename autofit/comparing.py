"""Comparisons: the tensors of several workloads' forward passes, their peaks, and what they return."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.errors import UsageError, WorkloadFailedError
from autofit.events import EventSink, Progress, ignore
from autofit.hardware.card import Card
from autofit.identity import versions
from autofit.predict.predictor import local_predictor
from autofit.report.compare import Comparison, ForwardPass
from workers.comparison import ComparisonFailedError, OutputComparison, compare_outputs
from workers.protocol import Device, Knobs, WorkloadRef
from workers.trace import FORWARD_END

# One pass of each on the CPU; who compares more than that takes gets the lists without the outputs.
_DEADLINE_SECONDS = 600.0


def compare_workloads(
    workloads: Sequence[WorkloadRef], *, batch_size: int, card: Card, emit: EventSink = ignore
) -> Comparison:
    """Compares forward passes in inference; the outputs are worked out for real, on the CPU.

    Args:
        card: that the peaks are predicted for.

    Raises:
        UsageError: there are fewer than two workloads.
        WorkloadFailedError: one of them fails, or cannot be predicted.
    """
    if len(workloads) < 2:
        raise UsageError("a comparison is of two models or more: name another one")
    passes = []
    for workload in workloads:
        predictor = local_predictor(workload, mode="infer", emit=emit, with_tensors=True)
        trace = predictor.trace(Knobs(), batch_size)
        curve = predictor.curve_of(trace.until(FORWARD_END), Knobs(), card)
        passes.append(ForwardPass.of(trace, curve(batch_size)))
    emit(Progress(stage="running the models on the CPU"))
    return Comparison(
        batch_size=batch_size,
        device=Device(kind="cuda", name=card.name),
        passes=tuple(passes),
        outputs=_outputs(workloads, batch_size),
        versions=versions(),
    )


def _outputs(workloads: Sequence[WorkloadRef], batch_size: int) -> tuple[OutputComparison, ...]:
    """What the models return; a process that does not come to its end costs only this part."""
    try:
        return compare_outputs(workloads, batch_size=batch_size, deadline_seconds=_DEADLINE_SECONDS)
    except ComparisonFailedError as failed:
        if failed.error is not None:
            raise WorkloadFailedError(str(failed), traceback=failed.error.traceback) from failed
        return tuple(
            OutputComparison(workload=workload.name, reason=str(failed)) for workload in workloads[1:]
        )
