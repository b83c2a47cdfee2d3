"""Makes a profile's timing, with each operator's share of the step's time, from a timed step."""

from __future__ import annotations

from autofit.explain.timing import Roofs, TimedCall, TimedKernel, Timing
from autofit.predict.times.step_times import ClockedStep, StepTime
from autofit_workers.replay.time.kernels import Kernel
from autofit_workers.replay.time.speeds import Speeds
from autofit_workers.replay.time.step import done_after, kernel_seconds, step_seconds
from autofit_workers.spec.work import Work

_DIGITS = 9  # of a share of the step: nanoseconds, if the step takes a second


def timing_of(found: ClockedStep, time: StepTime) -> Timing:
    """Predicted time of each operator of a step, as a share of the whole step.

    Args:
        found: the step with the predicted times of its operators.
        time: the time of the whole step, which says whether seconds are certain enough to be shown.
    """
    step, clock = found.step, found.clock
    whole = step_seconds(step, clock)
    times = _times(found, whole)
    known: dict[int, tuple[TimedKernel, ...]] = {}

    def kernels(work: Work) -> tuple[TimedKernel, ...]:
        if id(work) not in known:
            known[id(work)] = tuple(
                _timed(kernel, kernel_seconds(kernel, found.costs, found.conv_cost) / whole)
                for kernel in found.costs.kernels(work)
            )
        return known[id(work)]

    return Timing(
        calls=tuple(
            TimedCall(
                operator=call.work.operator,
                module=call.module,
                position=call.position,
                launched=round(timed.launched_seconds / whole, _DIGITS),
                start=round(timed.start_seconds / whole, _DIGITS),
                end=round(timed.end_seconds / whole, _DIGITS),
                times=factor,
                kernels=kernels(call.work),
            )
            for call, timed, factor in zip(step.calls, clock.calls, times, strict=True)
        ),
        seconds=time.stated,
        roofs=_roofs(found.costs.speeds),
    )


def _times(found: ClockedStep, whole: float) -> list[float]:
    """Number of times that each operator call counts in the step's time.

    It is 1, except for the last traced pass of a text generation, which stands for all later passes.

    Args:
        whole: seconds of the whole step.
    """
    num_calls, repeated = len(found.step.calls), found.step.repeated
    if repeated is None or not repeated.num_calls:
        return [1.0] * num_calls
    first = num_calls - repeated.num_calls
    last = found.clock.seconds - done_after(found.clock, first)
    factor = round(1 + (whole - found.clock.seconds) / last, _DIGITS)
    return [1.0] * first + [factor] * repeated.num_calls


def _timed(kernel: Kernel, share: float) -> TimedKernel:
    return TimedKernel(
        kind=kernel.kind,
        share=round(share, _DIGITS),
        flops=0 if kernel.product is None else kernel.product.flops,
        moved_bytes=kernel.moved_bytes + kernel.copied_bytes,
        dtype=kernel.dtype,
    )


def _roofs(speeds: Speeds) -> Roofs:
    return Roofs(flops=dict(speeds.flops), vector_flops=speeds.vector_flops, bandwidth=speeds.bandwidth)
