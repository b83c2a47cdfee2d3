"""Events of a training run with batches of any lengths, made from traced batches of other lengths.

    traced      model │ 311 │ 87 │ 902 │ 95 │ 411 │ 128      each pass of a batch up to the next one's
    warm-up     model │ 311 │ 87                             the first ones, which differ in their events
    period                       │ 902 │ 95 │ 411 │ 128      from here on the same events come again
    drawn       model │ 311 │ 87 │ 640 │ 77 │ 902 │ …        with the bytes that they have at other lengths

Batches differ in one or more numbers, such as their number of tokens. An allocation's size is a polynomial of
the second degree in the numbers of its own batch, or of the next batch (which may be fetched early), or of
the last one. If the size is computed at a replay, as that of a workspace, its dimensions are such
polynomials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile

from autofit_workers.replay.curve.conditions import Call
from autofit_workers.replay.curve.lines.call_lines import CallLines, call_lines
from autofit_workers.replay.curve.lines.least_squares import Fitted, fitted
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import Allocation, Lengths, Trace

Numbers = tuple[int, ...]
Demand = Callable[[Sequence[Call]], Sequence[int]]

_SHIFTS = (0, 1, -1)  # the size depends on the allocation's own batch, the next one or the last one
_ERROR_DIGITS = 6  # differences of errors beyond these digits are due to rounding
_MOST_PERIOD = 64  # most batches that one step accumulates
_MOST_WARM_UP = 0.5  # largest share of the traced batches
_LEAST_ALIKE = 2  # fewest batches whose events repeat those of an earlier batch


# An event is written as a base and an offset, so that batches with the same course have equal events. Base 0:
# allocation of the batch itself; 1: free of an allocation from before all batches; 2 + k: free of an
# allocation of the batch that is k batches older.
_Event = tuple[int, int]
_ALLOCATION, _FREE_OF_MODEL, _FREE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class _Batch:
    """Events and allocations of one traced batch.

    Attributes:
        events: events of the batch. Each has a base, which says what it allocates or frees (see `_Event`),
            and an offset from it, so that batches that behave alike have equal events.
        first: index of the batch's first allocation in the trace.
        num_allocations: number of the batch's allocations.
    """

    events: tuple[_Event, ...]
    first: int
    num_allocations: int


class VaryingRun:
    """Events of a training run for batches of given lengths, from a trace of batches of other lengths.

    A batch's lengths are the numbers in which batches differ, such as the longest sequence.

    Args:
        trace: trace of some batches of different lengths.
        lengths: lengths of the trace's batches.
        sizes: bytes of each allocation of the trace.
        demand: returns the workspace or scratch bytes of given operator calls.
        batches: the events of each of the traced batches.
        period: the number of batches after which the same events come again.
    """

    def __init__(
        self,
        trace: Trace,
        lengths: Lengths,
        sizes: Sequence[int],
        demand: Demand,
        *,
        batches: Sequence[_Batch],
        period: int,
    ) -> None:
        self._trace = trace
        self._lengths = lengths
        self._sizes = sizes
        self._demand = demand
        self._batches = batches
        self._period = period
        self._known: dict[tuple[int, tuple[Numbers, ...]], list[int]] = {}

    @classmethod
    def of(cls, trace: Trace, sizes: Sequence[int], demand: Demand) -> Self | None:
        """Makes the run from a trace; None if the trace does not tell how batches of other lengths behave.

        That is so if the events never repeat, if the trace has no batch lengths or no ends of steps, or if it
        uses several streams.

        Args:
            trace: trace of some batches of different lengths.
            sizes: bytes of each allocation of the trace.
            demand: returns the workspace or scratch bytes of given operator calls.
        """
        lengths = trace.lengths
        uses_streams = any(each.stream or each.stream_uses for each in trace.allocations)
        if lengths is None or trace.seen is None or not trace.seen.step_ends or uses_streams:
            return None
        batches = _batches_of(trace, lengths)
        period = _period_of(batches)
        if period is None:
            return None
        return cls(trace, lengths, sizes, demand, batches=batches, period=period)

    @property
    def num_traced(self) -> int:
        """Number of batches that the trace holds from start to end."""
        return len(self._batches)

    @property
    def num_events_of_batch(self) -> float:
        """Average number of events of a traced batch."""
        return len(self._trace.events) / max(len(self._batches), 1)

    def drawn(self, order: Sequence[Numbers]) -> tuple[list[int], list[int]]:
        """Returns events, and bytes of each allocation, of a run with batches of the lengths in `order`.

        Everything before the first batch, and the first batches, whose events do not repeat, stay as traced;
        the batches of `order` follow.

        Args:
            order: for each batch the numbers in which batches differ.
        """
        batches = self._batches
        num_warm = len(batches) - self.num_steady
        start = batches[num_warm].first if num_warm < len(batches) else len(self._sizes)
        events = self._events_before(num_warm)
        sizes = list(self._sizes[:start])
        firsts = [batch.first for batch in batches[:num_warm]]
        own = self._lengths.numbers
        numbers = [*own[:num_warm], *order]
        for place in range(num_warm, len(numbers)):
            template = num_warm + (place - num_warm) % self._period
            batch, first = batches[template], len(sizes)
            firsts.append(first)
            sizes += self._sizes_at(template, _around(numbers, place))
            bases = [first, 0, *(~firsts[place - ago] for ago in range(min(place, self._most_ago) + 1))]
            events += [bases[base] + number for base, number in batch.events]
        return events, sizes

    @cached_property
    def _most_ago(self) -> int:
        """Largest number of batches between the allocation of a block and the batch that frees it."""
        return max((base - _FREE for batch in self._batches for base, _ in batch.events), default=0)

    @cached_property
    def num_steady(self) -> int:
        """Number of traced batches at the end of the trace whose events repeat, in whole periods."""
        steady = self._period + _num_alike(self._batches, self._period)
        return steady - steady % self._period

    def _events_before(self, num_batches: int) -> list[int]:
        starts = self._lengths.starts
        stop = starts[num_batches] if num_batches < len(starts) else len(self._trace.events)
        return list(self._trace.events[:stop])

    def _sizes_at(self, template: int, around: tuple[Numbers, ...]) -> list[int]:
        key = template, around
        if key not in self._known:
            distinct, place_of = self._allocations[template % self._period]
            found = [each.at(around) for each in distinct]
            calls = list(dict.fromkeys(each for each in found if not isinstance(each, int)))
            demanded = dict(zip(calls, self._demand(calls), strict=True))
            values = [each if isinstance(each, int) else demanded[each] for each in found]
            self._known[key] = [values[place] for place in place_of]
        return self._known[key]

    @cached_property
    def _allocations(self) -> dict[int, tuple[list[_VaryingSize], list[int]]]:
        """Size functions of a batch's allocations, by the position of the batch in a period.

        For each place these are the distinct functions, and for each allocation the index of its function.
        """
        num_steady = self.num_steady
        first = len(self._batches) - num_steady
        return {
            (first + place) % self._period: self._through(
                [first + place + self._period * turn for turn in range(num_steady // self._period)]
            )
            for place in range(self._period)
        }

    def _through(self, alike: Sequence[int]) -> tuple[list[_VaryingSize], list[int]]:
        """Size functions of a batch's allocations, fitted to the batches `alike`, and each one's index."""
        allocations = self._trace.allocations
        around = [_around(self._lengths.numbers, number) for number in alike]
        fits = [_Recording(fitted(points)) for points in zip(*around, strict=True)]
        columns = zip(
            *(
                allocations[self._batches[number].first :][: self._batches[number].num_allocations]
                for number in alike
            ),
            strict=True,
        )
        numbers: dict[_VaryingSize, int] = {}
        place_of = [
            numbers.setdefault(
                min((_size_through(column, place, fit) for place, fit in enumerate(fits)), key=_error),
                len(numbers),
            )
            for column in columns
        ]
        return list(numbers), place_of


@dataclass(frozen=True, slots=True)
class _VaryingSize:
    """Size of an allocation as a function of the lengths of its batch or of a neighbouring batch.

    Attributes:
        place: batch whose lengths determine the size: 0 the allocation's own, 1 the next, 2 the one before.
        of_numbers: bytes, or the dimensions of an operator call with workspace, as functions of the lengths.
        error: largest relative error of these functions at the traced batches.
    """

    place: int
    of_numbers: Fitted | CallLines[Fitted]
    error: float

    def at(self, around: Sequence[Numbers]) -> int | Call:
        """Size of an allocation at given lengths: bytes, or the operator call from which they are computed.

        Args:
            around: lengths of the allocation's batch, of the next one and of the one before.
        """
        numbers = around[self.place]
        if isinstance(self.of_numbers, Fitted):
            return self.of_numbers.at(numbers)
        return self.of_numbers.mapped(lambda function: (function.at(numbers), 0)).at(0)


class _Recording:
    """Callable that fits polynomials, and records the largest error of its fits until `take_error`."""

    def __init__(self, fit: Callable[[Sequence[int]], Fitted]) -> None:
        self._fit = fit
        self._largest = 0.0

    def __call__(self, values: Sequence[int]) -> Fitted:
        found = self._fit(values)
        self._largest = max(self._largest, found.error)
        return found

    def take_error(self) -> float:
        largest, self._largest = self._largest, 0.0
        return largest


def _size_through(column: Sequence[Allocation], place: int, fit: _Recording) -> _VaryingSize:
    found = call_lines(fit, column) or fit([each.num_bytes for each in column])
    return _VaryingSize(place, found, fit.take_error())


def _error(size: _VaryingSize) -> tuple[float, int]:
    return round(size.error, _ERROR_DIGITS), size.place


def _batches_of(trace: Trace, lengths: Lengths) -> list[_Batch]:
    """Traced batches with their events, without the last batch, whose end is unknown.

    A batch ends where the next one starts.
    """
    bounds = list(pairwise(lengths.starts))
    batch_of: dict[int, int] = {}
    firsts: list[int] = []
    batches = []
    num_allocated = sum(event >= 0 for event in trace.events[: bounds[0][0]]) if bounds else 0
    for place, (start, end) in enumerate(bounds):
        firsts.append(num_allocated)
        events: list[_Event] = []
        for event in trace.events[start:end]:
            if event >= 0:
                batch_of[event] = place
                events.append((_ALLOCATION, event - firsts[place]))
                num_allocated += 1
            elif (other := batch_of.get(~event)) is None:
                events.append((_FREE_OF_MODEL, event))
            else:
                events.append((_FREE + place - other, firsts[other] - ~event))
        batches.append(_Batch(tuple(events), firsts[place], num_allocated - firsts[place]))
    return batches


def _period_of(batches: Sequence[_Batch]) -> int | None:
    """Number of batches after which the events repeat at the end of the trace; None if they never do."""
    for period in range(1, min(_MOST_PERIOD, len(batches) // 2) + 1):
        least = max(period, _LEAST_ALIKE, round((1 - _MOST_WARM_UP) * len(batches)) - period)
        if _num_alike(batches, period) >= least:
            return period
    return None


def _num_alike(batches: Sequence[_Batch], period: int) -> int:
    """Number of batches, counted from the last, whose events equal those of the batch `period` earlier."""
    pairs = zip(reversed(batches), reversed(batches[:-period]), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0].events == pair[1].events, pairs))


def _around(numbers: Sequence[Numbers], place: int) -> tuple[Numbers, ...]:
    """Lengths of a batch, of the next one, and of the one before.

    At an end of the run, the batch's own lengths take the place of a missing neighbour's.

    Args:
        numbers: lengths of each batch of the run.
        place: index of the batch.
    """
    return tuple(numbers[min(max(place + shift, 0), len(numbers) - 1)] for shift in _SHIFTS)
