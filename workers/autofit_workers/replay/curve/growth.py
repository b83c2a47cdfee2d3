"""Memory that more and more of is alive after each step, by the line that took it.

    alive after step          1     2     3     4     5     6     7     8
    parameters, states       80    80    80    80    80    80    80    80      warm-up: all from step 1 on
    the batch, gradients     84    84    84    84    84    84    84    84      made anew in each step
    outputs in a deque(4)     0     2     4     6     8     8     8     8      has filled
    losses with graphs        0    18    36    54    72    90   108   126      grows

What outlived a whole step has to rise until the last. Of what is made anew, such as a tensor that each step
appends to, the newest block has to rise by the same every time: batches whose lengths differ do not.
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

# Bytes a step from which growth is told. Two of the allocator's smallest blocks: one of them, a loss that is
# kept without its graph, takes 49 MiB in 100,000 steps.
LEAST_BYTES = 1024
# Where something may grow, so many steps tell more. The last ones come after so many that what is kept in
# each step is in whole, or in each 2nd, 3rd, 4th, 6th or 12th.
_LOOKED_AT = (8, 15, 27, 39, 51, 63)
_SURE_AT = 15
_PERIOD = 12
_MOST_EVENTS = 40_000  # of steps that are made to be surer than that
_RECENT = 4  # steps in which something rises, or has filled
_BLOCK_BYTES = 512  # what the allocator rounds a request up to


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What one line leaves alive in each step.

    Attributes:
        source: the user's line, `file:line:function`.
        bytes_per_step: on average.
    """

    source: str
    bytes_per_step: int


@dataclass(frozen=True, slots=True)
class _Line:
    """Bytes of one line that were alive after each step: made in an earlier step, and in the same."""

    older: list[int]
    newest: list[int]

    @property
    def may_grow(self) -> bool:
        """Whether the steps so far leave it open."""
        recent = min(_RECENT, len(self.older) - 2)
        is_rising = recent > 0 and self.older[-1] - self.older[-1 - recent] >= LEAST_BYTES
        return is_rising or _rises_evenly(self.newest[len(self.newest) > _RECENT :])

    @property
    def rate(self) -> float:
        """Bytes a step by which it grows; 0 where it does not."""
        if _rises_to_its_end(self.older[1:]):
            return _slope(self.older)
        return _slope(self.newest) if _rises_evenly(self.newest[1:]) else 0


class LiveAfterSteps:
    """What is alive after each step.

    Args:
        ends: positions in the events at which the steps had ended.
        sizes: bytes of each allocation; None for those that were traced.
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
        """That of a trace; of one that does not say where its steps end, of no step."""
        ends = () if trace.seen is None else trace.seen.step_ends
        return cls(trace.allocations, trace.events, ends, sizes)

    @property
    def num_steps_that_tell(self) -> int:
        """After how many steps to look again, where something may grow; else those that were seen."""
        seen = len(self._ends)
        if not any(line.may_grow for line in self._lines.values()):
            return seen
        wanted = next((number for number in _LOOKED_AT if number > seen), seen)
        num_events = len(self._events) / max(seen, 1) * wanted
        return wanted if wanted <= _SURE_AT or num_events <= _MOST_EVENTS else seen

    @property
    def growths(self) -> tuple[Growth, ...]:
        """What grows, the most first."""
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
        """By how many bytes the allocated peak of a step rises from step to step."""
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
        """After each step the bytes of each line that are from earlier steps, and from this one."""
        older: Counter[str] = Counter()
        born: dict[int, int] = {}
        start = 0
        for number, end in enumerate(self._ends):
            newest: Counter[str] = Counter()
            for event in self._events[start:end]:
                index = max(event, ~event)
                source, num_bytes = self._allocations[index].source, self._bytes_of(event)
                if self._allocations[index].module == DATA_PARALLEL:
                    continue  # its buckets are made anew after the first step, and never again
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
    """How much a value rises a step, over whole periods up to the last step; the first warms up."""
    steps = len(values) - 2
    steps = steps // _PERIOD * _PERIOD or steps
    return (values[-1] - values[-1 - steps]) / steps if steps > 0 else 0


def _rises_to_its_end(values: Sequence[int]) -> bool:
    """Whether no third of the values lies below the one before, and the last rises about as the others."""
    third = len(values) // 3
    parts = values[:third], values[third : len(values) - third], values[-third:]
    first, second, last = (part[-1] for part in parts)
    is_ordered = max(parts[0]) <= min(parts[1]) and max(parts[1]) <= min(parts[2])
    mean = (last - values[0]) / (len(values) - 1)
    return is_ordered and first < second < last and 2 * (last - second) >= mean * third


def _rises_evenly(values: Sequence[int]) -> bool:
    """Whether each value is above the one before, by the same but for what blocks are rounded up by."""
    rises = [after - before for before, after in itertools.pairwise(values)]
    return bool(rises) and min(rises) >= LEAST_BYTES and max(rises) - min(rises) <= _BLOCK_BYTES
