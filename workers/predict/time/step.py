"""The time of a step: what the host launches, one operator after the other, and what the device does of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.predict.time.costs import Costs
from workers.work import WorkCall


@dataclass(frozen=True, slots=True)
class TimedCall:
    """An operator of a step on the clock.

    Attributes:
        start_seconds, end_seconds: of its kernels on the device, from the step's begin.
        launched_seconds: when the host had launched it.
    """

    start_seconds: float
    end_seconds: float
    launched_seconds: float


@dataclass(frozen=True, slots=True)
class StepClock:
    """A step on a device.

    Attributes:
        calls: of the step, in its order.
        host_seconds: until the host has launched all of it.
        device_seconds: that the device works, without the gaps in which it waits for the host.
        seconds: until both are done.
    """

    calls: tuple[TimedCall, ...]
    host_seconds: float
    device_seconds: float
    seconds: float


def clocked(calls: Sequence[WorkCall], in_backward: Sequence[bool], costs: Costs) -> StepClock:
    """A step on the clock: a kernel begins once it is launched and the one before it is done.

    Args:
        calls: of the step.
        in_backward: whether the autograd engine makes each.
        costs: of the device.
    """
    host = costs.constants.host
    now, free_at, worked = host.step, host.step, 0.0
    timed = []
    for call, backward in zip(calls, in_backward, strict=True):
        kernels = costs.kernels(call.work)
        launches = sum(kernel.num_launches for kernel in kernels)
        now += call.num_views * host.view + (host.backward_call if backward else host.call)
        now += max(0, launches - 1) * host.launch
        seconds = sum(map(costs.seconds, kernels))
        start = max(now, free_at)
        free_at = start + seconds
        worked += seconds
        timed.append(TimedCall(start, free_at, now))
    return StepClock(tuple(timed), now, worked, max(now, free_at))
