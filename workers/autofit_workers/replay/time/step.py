"""Time of a step: the host launches one operator after the other, and the device runs their kernels.

    host      ──launch──launch──launch──launch──wait────────launch──
    stream 0       └kernel┘└kernel┘    └kernel┘  ▲               └kernel┘
    stream 1                      └────collective┴──┘

A kernel begins as soon as it is launched, the kernel before it on its stream is done, and the calls that its
stream waits for are done. Kernels run one at a time, even on different streams; collectives run beside them
and take multiprocessors from them (`Link.units`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autofit_workers.replay.time.costs import Costs, OperatorCosts
from autofit_workers.replay.time.kernels import EXCHANGES, Kernel, KernelClass
from autofit_workers.replay.time.lines import EventWait, StepWork
from autofit_workers.spec.work import Work, WorkCall

CONVOLUTIONS = (
    KernelClass.CONVOLUTION,
    KernelClass.GROUPED_CONVOLUTION,
    KernelClass.DEPTHWISE_CONVOLUTION,
)


@dataclass(frozen=True, slots=True)
class TimedCall:
    """Times in seconds of an operator call, counted from the begin of the step.

    Attributes:
        start_seconds, end_seconds: times at which its kernels begin and end on the device.
        launched_seconds: time at which the host had launched the operator.
    """

    start_seconds: float
    end_seconds: float
    launched_seconds: float


@dataclass(frozen=True, slots=True)
class StepClock:
    """Predicted times in seconds of a step on a device, and of each of the step's operators.

    Attributes:
        calls: times of the step's calls, in their order.
        device_seconds: time in which the device works, without the gaps in which it waits for the host.
        seconds: time from the step's begin until host and device are done.
        class_seconds: time of the device by class of kernels. Collectives count only with the time in which
            nothing else runs, plus the time by which kernels beside them take longer.
        exchange_seconds: time of collectives, including the parts hidden behind kernels.
    """

    calls: tuple[TimedCall, ...]
    device_seconds: float
    seconds: float
    class_seconds: Mapping[KernelClass, float]
    exchange_seconds: float = 0.0

    @property
    def waiting_seconds(self) -> float:
        """Seconds in which the device is idle because it waits for the host."""
        return self.seconds - self.device_seconds


def clocked(
    calls: Sequence[WorkCall],
    in_backward: Sequence[bool],
    costs: OperatorCosts,
    *,
    host_waits: Sequence[int] = (),
    event_waits: Sequence[EventWait] = (),
    convolution_cost: float = 1.0,
    exchange_cost: float = 1.0,
    host_cost: float = 1.0,
) -> StepClock:
    """Simulates a step on a device, and returns the times of the step and its operators.

    Args:
        calls: operator calls of the step.
        in_backward: for each call, whether the autograd engine makes it.
        costs: predicted seconds of operators on the device and of launches on the host.
        host_waits: indices of the calls before which the host waits until the device is idle.
        event_waits: waits of the host for single calls.
        convolution_cost: factor on the seconds of convolutions, for an algorithm other than cuDNN's default.
        exchange_cost: factor on the seconds of collectives.
        host_cost: factor on the host's seconds of calls and launches.
    """
    host = costs.host
    now = host.step
    waits = set(host_waits)
    waits_for = defaultdict(list)
    for wait in event_waits:
        waits_for[wait.number].append(wait.call)
    on_device = _OnDevice(costs, convolution_cost, exchange_cost)
    lanes = _Lanes(now, costs.slowdown)
    launched = []
    for number, (call, backward) in enumerate(zip(calls, in_backward, strict=True)):
        if number in waits:
            now = max(now, lanes.done_at())
        for awaited in waits_for.get(number, ()):
            now = max(now, lanes.done_at(awaited))
        launches, seconds = on_device.of(call.work)
        of_host = call.num_views * host.view + (host.backward_call if backward else host.call)
        of_host += max(0, launches - 1) * host.launch
        now += host_cost * of_host
        lanes.launch(call, now, seconds)
        launched.append(now)
        if costs.is_synchronous:
            now = lanes.done_at(number)
    end = max(now, lanes.done_at())
    class_seconds = on_device.class_seconds(calls)
    exchange_seconds = sum(class_seconds.get(kind, 0.0) for kind in EXCHANGES)
    if exchange_seconds:
        cost = lanes.exposed_seconds + lanes.slowed_seconds
        for kind in EXCHANGES & class_seconds.keys():
            class_seconds[kind] *= cost / exchange_seconds
    timed = (TimedCall(start, done, at) for (start, done), at in zip(lanes.spans, launched, strict=True))
    return StepClock(tuple(timed), sum(class_seconds.values()), end, class_seconds, exchange_seconds)


def kernel_seconds(kernel: Kernel, costs: Costs, convolution_cost: float = 1.0) -> float:
    """Predicted seconds of a kernel on the device when nothing runs beside it.

    Args:
        kernel: the kernel.
        costs: predicted seconds on the device.
        convolution_cost: factor on the seconds of convolutions, for an algorithm other than cuDNN's default.
    """
    return costs.seconds(kernel) * _factor(kernel.kind, convolution_cost)


def _factor(kind: KernelClass, convolution_cost: float, exchange_cost: float = 1.0) -> float:
    if kind in EXCHANGES:
        return exchange_cost
    return convolution_cost if kind in CONVOLUTIONS else 1.0


def step_seconds(step: StepWork, clock: StepClock) -> float:
    """Seconds of a step, including the passes of a text generation that were not traced.

    The untraced passes are taken to grow in time as the last two traced passes did.

    Args:
        step: operator calls of the step, and how often its last pass repeats.
        clock: times of the traced part.
    """
    if step.repeated is None:
        return clock.seconds
    num_calls, times = step.repeated.num_calls, step.repeated.times
    end, middle, start = (done_after(clock, len(clock.calls) - passes * num_calls) for passes in range(3))
    last, before = end - middle, middle - start
    return clock.seconds + times * last + max(0.0, last - before) * times * (times + 1) / 2


def whole_clock(step: StepWork, clock: StepClock, last: StepClock | None) -> StepClock:
    """Times of a step with the passes of a text generation that were not traced, but of no single call.

    Args:
        step: operator calls of the step.
        clock: times of the traced part.
        last: times of its last pass alone, which the others are like; None for other steps.
    """
    seconds = step_seconds(step, clock)
    if last is None:
        return clock
    times = (seconds - clock.seconds) / last.seconds
    kinds = clock.class_seconds.keys() | last.class_seconds.keys()
    return StepClock(
        calls=(),
        device_seconds=clock.device_seconds + times * last.device_seconds,
        seconds=seconds,
        class_seconds={
            kind: clock.class_seconds.get(kind, 0.0) + times * last.class_seconds.get(kind, 0.0)
            for kind in kinds
        },
        exchange_seconds=clock.exchange_seconds + times * last.exchange_seconds,
    )


def done_after(clock: StepClock, num_calls: int) -> float:
    """Time in seconds from the step's begin until the first `num_calls` calls are done on the device."""
    return clock.calls[num_calls - 1].end_seconds if num_calls else 0.0


@dataclass(frozen=True, slots=True)
class _Launched:
    """Operator call that the host has launched and that has not begun on its stream."""

    number: int
    at: float
    seconds: float
    after: tuple[int, ...]
    is_exchange: bool


class _Lanes:
    """Simulation of the streams of one device: kernels run one at a time, collectives beside them.

    Args:
        start: time in seconds at which the step begins.
        slowdown: time of a kernel while a collective runs beside it, over its time alone.

    Attributes:
        slowed_seconds: seconds by which kernels took longer because collectives ran beside them.
    """

    def __init__(self, start: float, slowdown: float) -> None:
        self.slowed_seconds = 0.0
        self._start = start
        self._slowdown = slowdown
        self._spans: list[tuple[float, float] | None] = []
        self._exchanges: list[int] = []
        self._waiting: dict[int, deque[_Launched]] = {}
        self._free_at: dict[int, float] = {}  # by stream
        self._kernels_until = start
        self._exchanges_until = start

    def launch(self, call: WorkCall, at: float, seconds: float) -> None:
        """Adds an operator call to its stream.

        Args:
            call: the next call of the step.
            at: time in seconds at which the host has launched it.
            seconds: time that it takes on the device by itself.
        """
        number = len(self._spans)
        after = tuple(number - distance for distance in call.after if distance <= number)
        is_exchange = call.work.group is not None
        self._spans.append(None)
        if is_exchange:
            self._exchanges.append(number)
        launched = _Launched(number, at, seconds, after, is_exchange)
        if not self._waiting:
            start = self._earliest(call.stream, launched)
            # Calls that are launched later cannot begin before this one, so it need not wait to be compared
            # with them.
            if start <= max(at, self._kernels_until):
                self._run(call.stream, launched, start)
                return
        self._waiting.setdefault(call.stream, deque()).append(launched)

    def done_at(self, number: int | None = None) -> float:
        """Time in seconds at which a call is done on the device.

        Args:
            number: index of the call; None, or the index of a call not launched yet, for all launched calls.
        """
        wanted = None if number is None or number >= len(self._spans) else number
        while self._waiting and (wanted is None or self._spans[wanted] is None):
            self._run_next()
        if wanted is None:
            return max(self._free_at.values(), default=self._start)
        span = self._spans[wanted]
        assert span is not None
        return span[1]

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Start and end of each call in seconds; read it once all calls are done."""
        return [span for span in self._spans if span is not None]

    @property
    def exposed_seconds(self) -> float:
        """Seconds in which collectives run and no kernel does; read it once all calls are done."""
        spans = self.spans
        exchanges = set(self._exchanges)
        kernels = _merged(span for number, span in enumerate(spans) if number not in exchanges)
        beside = _merged(spans[number] for number in self._exchanges)
        return _length(_merged((*kernels, *beside))) - _length(kernels)

    def _run_next(self) -> None:
        """Simulates one call: of the next calls of all streams, the one that can start first."""
        if len(self._waiting) == 1:
            (stream,) = self._waiting
        else:
            first = {stream: queue[0] for stream, queue in self._waiting.items()}
            stream = min(first, key=lambda each: (self._earliest(each, first[each]), first[each].number))
        queue = self._waiting[stream]
        call = queue.popleft()
        if not queue:
            del self._waiting[stream]
        self._run(stream, call, self._earliest(stream, call))

    def _run(self, stream: int, call: _Launched, start: float) -> None:
        end = start + call.seconds
        if call.is_exchange:
            self._exchanges_until = max(self._exchanges_until, end)
        else:
            if self._exchanges_until > start:
                end = self._slowed(start, call.seconds)
            self._kernels_until = end
        self._spans[call.number] = start, end
        self._free_at[stream] = end

    def _earliest(self, stream: int, call: _Launched) -> float:
        start = max(call.at, self._free_at.get(stream, self._start))
        if not call.is_exchange:
            start = max(start, self._kernels_until)
        for number in call.after:
            span = self._spans[number]
            if span is None:
                return math.inf
            start = max(start, span[1])
        return start

    def _slowed(self, start: float, seconds: float) -> float:
        """End time of a kernel that takes longer because a collective runs beside it for a while.

        Args:
            start: time in seconds at which the kernel begins.
            seconds: time that it takes by itself.
        """
        beside = min(seconds * self._slowdown, self._exchanges_until - start)
        longer = beside - beside / self._slowdown
        self.slowed_seconds += longer
        return start + seconds + longer


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merges overlapping spans into disjoint ones, in order."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _length(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end - start for start, end in spans)


class _OnDevice:
    """Cache of the number of launches and the device seconds of each operator, by its `Work`'s identity."""

    def __init__(self, costs: OperatorCosts, convolution_cost: float, exchange_cost: float) -> None:
        self._costs = costs
        self._convolution_cost = convolution_cost
        self._exchange_cost = exchange_cost
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
        """Seconds on the device of all calls together, by class of kernels.

        Args:
            calls: calls whose `Work` was looked up with `of` before.
        """
        seconds: defaultdict[KernelClass, float] = defaultdict(float)
        for key, times in Counter(id(call.work) for call in calls).items():
            for kind, of_one in self._by_class[key]:
                seconds[kind] += times * of_one
        return dict(seconds)

    def _factor(self, kind: KernelClass) -> float:
        return _factor(kind, self._convolution_cost, self._exchange_cost)
