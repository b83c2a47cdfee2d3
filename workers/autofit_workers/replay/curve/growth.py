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

from autofit_workers.spec.pythons import Self
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
        bytes_per_step: mean number of bytes by which its live memory grows from step to step.
    """

    source: str
    bytes_per_step: int


@dataclass(frozen=True, slots=True)
class _Line:
    """Bytes that the allocations of one source line hold after each step.

    Attributes:
        older: after each step, the bytes still alive that earlier steps allocated.
        newest: after each step, the bytes still alive that this step allocated.
    """

    older: list[int]
    newest: list[int]

    @property
    def may_grow(self) -> bool:
        """Whether more steps have to be traced to find out if a source line's memory grows."""
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
        allocations: allocations of the trace.
        events: `i` allocates `allocations[i]`, `~i` frees it.
        ends: positions in `events` at which the steps ended.
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
        """Live memory after each step of a trace; without steps if the trace does not mark their ends.

        Args:
            trace: the trace.
            sizes: bytes of each allocation; None for those of the trace.
        """
        ends = () if trace.seen is None else trace.seen.step_ends
        return cls(trace.allocations, trace.events, ends, sizes)

    @property
    def num_steps_that_tell(self) -> int:
        """Number of steps that should be traced to find out whether memory grows.

        It is the number of traced steps if these are enough, or if tracing more would take too long.
        """
        seen = len(self._ends)
        if not any(line.may_grow for line in self._lines.values()):
            return seen
        wanted = next((number for number in _LOOKED_AT if number > seen), seen)
        num_events = len(self._events) / max(seen, 1) * wanted
        return wanted if wanted <= _SURE_AT or num_events <= _MOST_EVENTS else seen

    @property
    def growths(self) -> tuple[Growth, ...]:
        """Source lines whose live memory grows, with their growth, largest first.

        Growth below 1024 bytes per step does not count. Empty if fewer than 8 steps were traced.
        """
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
        """Mean number of bytes by which the allocated peak rises from step to step."""
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
        """Yields for each step the live bytes of each source line after it, as two counters.

        The first counter has the bytes that earlier steps allocated, the second those that this step
        allocated.
        """
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
    """Mean rise per step from the second value to the last, over a multiple of 12 steps if there are so many.

    Returns:
        The rise in bytes per step; 0 if there are fewer than three values.
    """
    steps = len(values) - 2
    steps = steps // _PERIOD * _PERIOD or steps
    return (values[-1] - values[-1 - steps]) / steps if steps > 0 else 0


def _rises_to_its_end(values: Sequence[int]) -> bool:
    """Whether values keep rising until their end, rather than level off.

    Each third of the values has to lie above the third before, and the last third has to rise at half the
    mean rate or more.
    """
    third = len(values) // 3
    parts = values[:third], values[third : len(values) - third], values[-third:]
    first, second, last = (part[-1] for part in parts)
    is_ordered = max(parts[0]) <= min(parts[1]) and max(parts[1]) <= min(parts[2])
    mean = (last - values[0]) / (len(values) - 1)
    return is_ordered and first < second < last and 2 * (last - second) >= mean * third


def _rises_evenly(values: Sequence[int]) -> bool:
    """Whether values rise by at least 1024 bytes each time, by amounts that differ by at most 512 bytes.

    The allocator's rounding alone can make equal amounts differ by 512 bytes.
    """
    rises = [after - before for before, after in itertools.pairwise(values)]
    return bool(rises) and min(rises) >= LEAST_BYTES and max(rises) - min(rises) <= _BLOCK_BYTES
