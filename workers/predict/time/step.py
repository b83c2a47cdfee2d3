"""The time of a step: what the host launches, one operator after the other, and what the device does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.predict.time.costs import OperatorCosts
from workers.predict.time.kernels import KernelClass
from workers.predict.time.lines import StepWork
from workers.work import Work, WorkCall

CONVOLUTIONS = (
    KernelClass.CONVOLUTION,
    KernelClass.GROUPED_CONVOLUTION,
    KernelClass.DEPTHWISE_CONVOLUTION,
)


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
        class_seconds: of the device's work, by class of kernels.
    """

    calls: tuple[TimedCall, ...]
    host_seconds: float
    device_seconds: float
    seconds: float
    class_seconds: Mapping[KernelClass, float]

    @property
    def waiting_seconds(self) -> float:
        """That the device waits for the host."""
        return self.seconds - self.device_seconds


def clocked(
    calls: Sequence[WorkCall],
    in_backward: Sequence[bool],
    costs: OperatorCosts,
    *,
    host_waits: Sequence[int] = (),
    convolution_cost: float = 1.0,
) -> StepClock:
    """A step on the clock: a kernel begins once it is launched and the one before it is done.

    Args:
        calls: of the step.
        in_backward: whether the autograd engine makes each.
        costs: of the device.
        host_waits: see `StepWork`.
        convolution_cost: of the algorithm of convolutions, over that of cuDNN's choice.
    """
    host = costs.host
    now, free_at = host.step, host.step
    waits = set(host_waits)
    on_device = _OnDevice(costs, convolution_cost)
    timed = []
    for number, (call, backward) in enumerate(zip(calls, in_backward, strict=True)):
        if number in waits:
            now = max(now, free_at)
        launches, seconds = on_device.of(call.work)
        now += call.num_views * host.view + (host.backward_call if backward else host.call)
        now += max(0, launches - 1) * host.launch
        start = max(now, free_at)
        free_at = start + seconds
        timed.append(TimedCall(start, free_at, now))
        if costs.is_synchronous:
            now = free_at
    class_seconds = on_device.class_seconds(calls)
    return StepClock(tuple(timed), now, sum(class_seconds.values()), max(now, free_at), class_seconds)


def step_seconds(step: StepWork, clock: StepClock) -> float:
    """What a step takes with the passes of a generation that were not traced.

    Args:
        clock: of the traced part.
    """
    if step.repeated is None:
        return clock.seconds
    num_calls, times = step.repeated.num_calls, step.repeated.times
    end, middle, start = (_until(clock, len(clock.calls) - passes * num_calls) for passes in range(3))
    last, before = end - middle, middle - start
    return clock.seconds + times * last + max(0.0, last - before) * times * (times + 1) / 2


def _until(clock: StepClock, num_calls: int) -> float:
    """When host and device are done with the first calls."""
    if not num_calls:
        return 0.0
    call = clock.calls[num_calls - 1]
    return max(call.end_seconds, call.launched_seconds)


class _OnDevice:
    """Launches and seconds of work on the device, each different work once, told apart by identity."""

    def __init__(self, costs: OperatorCosts, convolution_cost: float) -> None:
        self._costs = costs
        self._convolution_cost = convolution_cost
        self._known: dict[int, tuple[int, float]] = {}
        self._by_class: dict[int, list[tuple[KernelClass, float]]] = {}

    def of(self, work: Work) -> tuple[int, float]:
        found = self._known.get(id(work))
        if found is None:
            launches, of_classes = self._costs.of(work)
            by_class = [(kind, seconds * self._factor(kind)) for kind, seconds in of_classes]
            self._by_class[id(work)] = by_class
            found = self._known[id(work)] = launches, sum(seconds for _, seconds in by_class)
        return found

    def class_seconds(self, calls: Sequence[WorkCall]) -> dict[KernelClass, float]:
        """Of all calls together, by class; each of them was asked for."""
        seconds: defaultdict[KernelClass, float] = defaultdict(float)
        for key, times in Counter(id(call.work) for call in calls).items():
            for kind, of_one in self._by_class[key]:
                seconds[kind] += times * of_one
        return dict(seconds)

    def _factor(self, kind: KernelClass) -> float:
        return self._convolution_cost if kind in CONVOLUTIONS else 1.0
