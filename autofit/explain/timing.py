"""Predicted times of a profile's step: its operators on host and device, as shares of the step.

All times are shares of the step's time. Only `Timing.seconds` turns them into seconds; it is None if the
prediction is too uncertain for seconds to be shown.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import Self

# Limits on values read from a file, beyond all real values, so that no sum in a view overflows a float.
_MOST_CHARACTERS = 4096  # length of a name, as in a trace
_MOST_WHOLE = 1 << 62
_MOST_A_SECOND = 1e24
_LONGEST = 1e9  # seconds, or steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Predicted time of a step in seconds: likely value, and intervals with 80 % and 95 % confidence.

    Attributes:
        low, high: bounds of the interval with 95 % confidence.
        likely: the likely time.
        low_80, high_80: bounds of the interval with 80 % confidence.
    """

    low: float
    likely: float
    high: float
    low_80: float
    high_80: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTime:
    """Predicted times of a text generation: to the first token of each prompt, and of the tokens after it.

    Attributes:
        first_token_seconds: seconds of the pass for the prompts; None where it is too uncertain.
        token_seconds: seconds of each later pass in the mean, which makes one token of each prompt; None for
            a single token, or where it is too uncertain.
        tokens_per_second: likely tokens a second of all prompts after the first token; None as
            `token_seconds`.
    """

    first_token_seconds: StepSeconds | None
    token_seconds: StepSeconds | None
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """Kernel that an operator runs on the GPU, with its predicted time and its work.

    Attributes:
        kind: class of the kernel, such as convolution or elementwise.
        share: its time as a share of the step's time, from 0 to 1.
        flops: operations of its matrix products; 0 without products.
        moved_bytes: bytes that it reads and writes.
        dtype: data type of its arithmetic; `tf32` if tensor cores compute products of float32.
    """

    kind: KernelClass
    share: float
    flops: int
    moved_bytes: int
    dtype: str


@dataclass(frozen=True, slots=True)
class TimedCall:
    """Call of an operator in a step, with its predicted times as shares of the step's time.

    Attributes:
        operator: PyTorch's name, `aten.addmm`.
        module: path of the module that ran it, as in `Allocation`.
        position: number of the trace's memory events before it.
        launched: time at which the host has launched its kernels, counted from the step's begin.
        start, end: times at which its kernels start and end on the device, counted from the step's begin.
        times: number of equal calls that it stands for; more than one if passes of a generation repeat it.
        kernels: the kernels that it runs, one after the other.
    """

    operator: str
    module: str
    position: int
    launched: float
    start: float
    end: float
    times: float
    kernels: tuple[TimedKernel, ...]

    @property
    def share(self) -> float:
        """Share of the step's time, from 0 to 1, that the operator takes on the device.

        It counts all the equal calls that this call stands for.
        """
        return self.times * (self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """Limits of a card's speed (the roofs of a roofline plot), at the clocks that it can sustain.

    Attributes:
        flops: operations per second of matrix products, by data type or `tf32`.
        vector_flops: operations per second outside tensor cores.
        bandwidth: bytes per second between the GPU and its memory.
    """

    flops: Mapping[str, float]
    vector_flops: float
    bandwidth: float

    def of(self, dtype: str) -> float:
        """Limit of matrix products in a data type, in operations a second.

        For a data type without a limit of its own, it is that of arithmetic outside tensor cores.
        """
        return self.flops.get(dtype, self.vector_flops)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Predicted times of the last whole step of a profile, operator by operator.

    Attributes:
        calls: calls of the operators that run kernels, in their order.
        seconds: time of the whole step; None if it is too uncertain to be stated.
        roofs: limits of the card's speed.
    """

    calls: tuple[TimedCall, ...]
    seconds: StepSeconds | None
    roofs: Roofs

    @cached_property
    def device_share(self) -> float:
        """Share of the step's time in which the device works."""
        return sum(call.share for call in self.calls)

    @property
    def waiting_share(self) -> float:
        """Share of the step's time in which the device is idle, as the host has not launched kernels yet."""
        return max(0.0, 1.0 - self.device_share)

    def seconds_of(self, share: float) -> float | None:
        """Likely seconds of a share of the step; None if the step's time is too uncertain.

        Args:
            share: the part, as a share of the step's time.
        """
        return None if self.seconds is None else share * self.seconds.likely

    def to_plain(self) -> dict[str, Any]:
        """Timing as plain data that JSON can hold; repeated names and kernels are stored once, in tables."""
        names: dict[str, int] = {}
        kernels: dict[TimedKernel, int] = {}
        calls = [
            [
                *(names.setdefault(name, len(names)) for name in (call.operator, call.module)),
                call.position,
                *(call.launched, call.start, call.end, call.times),
                [kernels.setdefault(kernel, len(kernels)) for kernel in call.kernels],
            ]
            for call in self.calls
        ]
        return {
            "seconds": None if self.seconds is None else dataclasses.asdict(self.seconds),
            "roofs": {**dataclasses.asdict(self.roofs), "flops": dict(self.roofs.flops)},
            "names": list(names),
            "kernels": [
                [each.kind.value, each.share, each.flops, each.moved_bytes, each.dtype] for each in kernels
            ],
            "calls": calls,
        }

    @classmethod
    def from_plain(cls, data: dict[str, Any], *, num_events: int) -> Self:
        """Timing read from the plain data that `to_plain` made.

        Args:
            data: the plain data, which may come from a damaged file.
            num_events: number of memory events of the trace that the timing belongs to.

        Raises:
            KeyError, IndexError, TypeError, ValueError: the data is malformed.
        """
        names = from_plain(tuple[str, ...], data["names"])
        kernels = [
            TimedKernel(KernelClass(kind), _number(share), _whole(flops), _whole(moved), str(dtype))
            for kind, share, flops, moved, dtype in data["kernels"]
        ]
        calls = tuple(
            TimedCall(
                names[_whole(operator)],
                names[_whole(module)],
                _whole(position),
                _number(launched),
                _number(start),
                _number(end),
                _number(times),
                tuple(kernels[_whole(number)] for number in run),
            )
            for operator, module, position, launched, start, end, times, run in data["calls"]
        )
        positions = [call.position for call in calls]
        launches = [call.launched for call in calls]
        if not calls or any(len(name) > _MOST_CHARACTERS for name in names):
            raise ValueError("its timed operators are missing or have no names")
        if positions != sorted(positions) or launches != sorted(launches) or positions[-1] > num_events:
            raise ValueError("its timed operators are out of order")
        if any(call.start > call.end for call in calls):
            raise ValueError("a timed operator ends before it starts")
        seconds = None if data["seconds"] is None else from_plain(StepSeconds, data["seconds"])
        roofs = from_plain(Roofs, data["roofs"])
        speeds = (*roofs.flops.values(), roofs.vector_flops, roofs.bandwidth)
        times = () if seconds is None else dataclasses.astuple(seconds)
        if not all(1 <= each <= _MOST_A_SECOND for each in speeds):
            raise ValueError("a speed is none that a card can have")
        if not all(1 / _LONGEST <= each <= _LONGEST for each in times):
            raise ValueError("a time is none that a step can take")
        return cls(calls=calls, seconds=seconds, roofs=roofs)


class EventClock:
    """Times of a step's memory events (allocations and frees), as shares of the step's time.

    Events lie between operators in order, but have no times of their own. Those of one operator are spread
    evenly over the time from the end of the operator before to its own end.

    Args:
        positions: for each operator, the number of the trace's events before it.
        ends: for each operator, the time at which it is done, as a share of the step.
        start: number of the trace's events before the step.
        stop: number of the trace's events up to the step's end.
    """

    def __init__(self, positions: Sequence[int], ends: Sequence[float], start: int, stop: int) -> None:
        self._positions = positions
        self._ends = ends
        self._bounds = start, stop

    @classmethod
    def of_host(cls, timing: Timing, start: int, stop: int) -> Self:
        """Clock of the host's times: an operator is done once its kernels are launched, ahead of the device.

        Args:
            start: number of the trace's events before the step.
            stop: number of the trace's events up to the step's end.
        """
        calls = timing.calls
        return cls([call.position for call in calls], [call.launched for call in calls], start, stop)

    @classmethod
    def of_device(cls, timing: Timing, start: int, stop: int) -> Self:
        """Clock of the device's times: an operator is done once its kernels have run.

        Args:
            start: number of the trace's events before the step.
            stop: number of the trace's events up to the step's end.
        """
        calls = timing.calls
        return cls([call.position for call in calls], [call.end for call in calls], start, stop)

    @property
    def end(self) -> float:
        """Time at which all operators are done, as a share of the step; 0 if there are none."""
        return self._ends[-1] if self._ends else 0.0

    def begin(self, number: int) -> float:
        """Time at which an operator begins (when the one before is done), as a share of the step.

        Args:
            number: index of the operator in the step.
        """
        return self._ends[number - 1] if number else 0.0

    def at(self, position: int) -> float:
        """Time at which the first operator after some memory events begins, as a share of the step.

        Args:
            position: number of the trace's memory events before it.
        """
        return self.begin(bisect_left(self._positions, position))

    def of_event(self, index: int) -> float:
        """Time at which a memory event happens, as a share of the step.

        Args:
            index: index of the event in the trace.
        """
        first, last = self._bounds
        # If several operators have one position, the last of them makes the events that follow.
        number = max(bisect_right(self._positions, index) - 1, 0)
        if not self._positions:
            return 0.0
        following = bisect_right(self._positions, self._positions[number])
        start = self._positions[number] if number else first
        stop = self._positions[following] if following < len(self._positions) else last
        number = following - 1
        begin, end = self.begin(number), self._ends[number]
        return begin + (end - begin) * (index - start + 1) / (stop - start + 1)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST:
        raise TypeError("a number is missing where one has to be")
    return float(value)


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_WHOLE:
        raise TypeError("a whole number is missing where one has to be")
    return value
