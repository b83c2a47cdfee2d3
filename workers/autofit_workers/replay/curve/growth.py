"""Memory growth from step to step, by the line of the user's code that allocates it.

    alive after step          1     2     3     4     5     6     7     8
    parameters, states       80    80    80    80    80    80    80    80      warm-up: all from step 1 on
    the batch, gradients     84    84    84    84    84    84    84    84      made anew in each step
    outputs in a deque(4)     0     2     4     6     8     8     8     8      has filled
    losses with graphs        0    18    36    54    72    90   108   126      grows

The memory of a source line counts as growing in either of two cases: its blocks that outlive a whole step add
up to more until the last step; or its blocks of each step, such as the tensor that each step makes by
appending to the last one, are larger every time by the same bytes. Batches of different lengths do neither.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from autofit_workers.spec.trace import DATA_PARALLEL, Allocation, Trace

# Growth of fewer bytes per step is not reported. One block of 512 bytes, such as a loss that is kept without
# its graph, adds up to only 49 MiB in 100,000 steps.
LEAST_BYTES = 1024
# Numbers of steps to trace, one after the other, for as long as memory may still grow. The later ones are 12
# steps apart, which are whole periods of a run that keeps something in every 1st, 2nd, 3rd, 4th, 6th or 12th
# step.
_LOOKED_AT = (8, 15, 27, 39, 51, 63)
_SURE_AT = 15
_PERIOD = 12
_MOST_EVENTS = 40_000  # in a trace of more than `_SURE_AT` steps
_RECENT = 4  # steps in which memory has to rise, or else has stopped growing
_BLOCK_BYTES = 512  # what the allocator rounds a request up to


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Memory growth of one source line: bytes more that it leaves alive in each step.

    Attributes:
        source: the user's line, `file:line:function`.
        bytes_per_step: average growth in a step.
    """

    source: str
    bytes_per_step: int


@dataclass(frozen=True, slots=True)
class _Line:
    """Live bytes of a source line after each step.

    Attributes:
        older: bytes that earlier steps allocated, after each step.
        newest: bytes that the step itself allocated, after each step.
    """

    older: list[int]
    newest: list[int]

    @property
    def may_grow(self) -> bool:
        """Whether the memory of a source line may still grow, judged by the steps traced so far."""
        recent = min(_RECENT, len(self.older) - 2)
        is_rising = recent > 0 and self.older[-1] - self.older[-1 - recent] >= LEAST_BYTES
        return is_rising or _rises_evenly(self.newest[len(self.newest) > _RECENT :])

    @property
    def rate(self) -> float:
        """Growth of a source line's memory in bytes per step; 0 if it does not grow."""
        if _rises_to_its_end(self.older[1:]):
            return _slope(self.older)
        return _slope(self.newest) if _rises_evenly(self.newest[1:]) else 0


class LiveAfterSteps:
    """Memory alive after each traced step, and its growth.

    Args:
        ends: positions in the events at which the steps ended.
        sizes: bytes of each allocation; None for the sizes in the trace.
    """

    def __init__(
        self,
        allocations: Sequence[Allocation],
        events: Sequence[int],
        ends: Sequence[int],
        sizes: Sequence[int] | None = None,
    ) -> None:
        self._allocations = allocations
        self._sizes = [each.num_bytes for each in allocations] if sizes is None else sizes
        self._events = events
        self._ends = ends

    @classmethod
    def of(cls, trace: Trace, sizes: Sequence[int] | None = None) -> Self:
        """Returns the memory alive after each step of a trace; empty if the trace lacks the steps' ends."""
        ends = () if trace.seen is None else trace.seen.step_ends
        return cls(trace.allocations, trace.events, ends, sizes)

    @property
    def num_steps_that_tell(self) -> int:
        """Number of steps to trace to find out whether memory grows; the traced number if they suffice."""
        seen = len(self._ends)
        if not any(line.may_grow for line in self._lines.values()):
            return seen
        wanted = next((number for number in _LOOKED_AT if number > seen), seen)
        num_events = len(self._events) / max(seen, 1) * wanted
        return wanted if wanted <= _SURE_AT or num_events <= _MOST_EVENTS else seen

    @property
    def growths(self) -> tuple[Growth, ...]:
        """Growth of each source line whose memory grows, the largest first; empty below 8 traced steps."""
        if len(self._ends) < _LOOKED_AT[0]:
            return ()
        rates = {source: round(line.rate) for source, line in self._lines.items()}
        found = [
            Growth(source=source, bytes_per_step=rate)
            for source, rate in rates.items()
            if rate >= LEAST_BYTES
        ]
        return tuple(sorted(found, key=lambda growth: -growth.bytes_per_step))

    @property
    def peak_rise(self) -> float:
        """Mean rise of the allocated peak in bytes from step to step."""
        live, start, peaks = 0, 0, []
        for end in self._ends:
            peak = live
            for event in self._events[start:end]:
                live += self._bytes_of(event) * (1 if event >= 0 else -1)
                peak = max(peak, live)
            peaks.append(peak)
            start = end
        return _slope(peaks)

    @cached_property
    def _lines(self) -> dict[str, _Line]:
        num_steps = len(self._ends)
        lines: dict[str, _Line] = defaultdict(lambda: _Line([0] * num_steps, [0] * num_steps))
        for number, (older, newest) in enumerate(self._steps()):
            for source, num_bytes in older.items():
                lines[source].older[number] = num_bytes
            for source, num_bytes in newest.items():
                lines[source].newest[number] = num_bytes
        return lines

    def _steps(self) -> Iterator[tuple[Counter[str], Counter[str]]]:
        """Yields each source line's live bytes after each step: from earlier steps, and from the step."""
        older: Counter[str] = Counter()
        born: dict[int, int] = {}
        start = 0
        for number, end in enumerate(self._ends):
            newest: Counter[str] = Counter()
            for event in self._events[start:end]:
                index = max(event, ~event)
                source, num_bytes = self._allocations[index].source, self._bytes_of(event)
                if self._allocations[index].module == DATA_PARALLEL:
                    continue  # DDP rebuilds its buckets once, after the first step
                if event >= 0:
                    born[index] = number
                    newest[source] += num_bytes
                elif born.pop(index) == number:
                    newest[source] -= num_bytes
                else:
                    older[source] -= num_bytes
            yield older, newest
            older.update(newest)
            start = end

    def _bytes_of(self, event: int) -> int:
        return math.ceil(self._sizes[max(event, ~event)] / _BLOCK_BYTES) * _BLOCK_BYTES


def _slope(values: Sequence[int]) -> float:
    """Mean rise of `values` per step up to the last, over whole periods of 12, without the first step."""
    steps = len(values) - 2
    steps = steps // _PERIOD * _PERIOD or steps
    return (values[-1] - values[-1 - steps]) / steps if steps > 0 else 0


def _rises_to_its_end(values: Sequence[int]) -> bool:
    """Whether values rise to their end: each third lies above the one before, and the last still rises.

    In the last third, they have to rise at half their mean rate or more.
    """
    third = len(values) // 3
    parts = values[:third], values[third : len(values) - third], values[-third:]
    first, second, last = (part[-1] for part in parts)
    is_ordered = max(parts[0]) <= min(parts[1]) and max(parts[1]) <= min(parts[2])
    mean = (last - values[0]) / (len(values) - 1)
    return is_ordered and first < second < last and 2 * (last - second) >= mean * third


def _rises_evenly(values: Sequence[int]) -> bool:
    """Whether values rise by at least 1024 bytes each time, by equal amounts up to the rounding to 512 B."""
    rises = [after - before for before, after in itertools.pairwise(values)]
    return bool(rises) and min(rises) >= LEAST_BYTES and max(rises) - min(rises) <= _BLOCK_BYTES
