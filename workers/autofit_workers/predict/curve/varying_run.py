"""A run whose batches differ in length: its steps at any lengths, from those that were traced.

No torch is needed here.

    traced      model │ 311 │ 87 │ 902 │ 95 │ 411 │ 128      each pass of a batch up to the next one's
    warm-up     model │ 311 │ 87                             the first ones, which differ in their events
    period                       │ 902 │ 95 │ 411 │ 128      from here on the same events come again
    drawn       model │ 311 │ 87 │ 640 │ 77 │ 902 │ …        with the bytes that they have at other lengths

What an allocation takes is a polynomial of the second degree of the numbers in which batches differ: of those
of its own batch, or of the next or the last one, which may have been fetched before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

from autofit_workers.predict.curve.least_squares import Fitted, fitted
from autofit_workers.trace import Lengths, Trace

Numbers = tuple[int, ...]

_SHIFTS = (0, 1, -1)  # an allocation's size is of its own batch, of the next one or of the last one
_MOST_PERIOD = 64  # batches that a step accumulates
_MOST_WARM_UP = 0.5  # of what was traced


@dataclass(frozen=True, slots=True)
class _Free:
    """A free in a batch's events: of the so many-th allocation of the batch that was so many before."""

    ago: int
    number: int


@dataclass(frozen=True, slots=True)
class _FreeOfModel:
    """A free of what was allocated before the first batch."""

    allocation: int


_Event = int | _Free | _FreeOfModel  # a number is an allocation, counted within its batch


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one batch did.

    Attributes:
        events: in terms of its own allocations.
        first: its first allocation in the trace.
        num_allocations: of its own.
    """

    events: tuple[_Event, ...]
    first: int
    num_allocations: int


class VaryingRun:
    """The events of a run at lengths that were drawn.

    Args:
        trace: of some batches of different lengths.
        lengths: of the trace.
        sizes: bytes of each allocation of the trace.
        batches: what each of its batches did.
        period: so many batches come again and again.
    """

    def __init__(
        self, trace: Trace, lengths: Lengths, sizes: Sequence[int], batches: Sequence[_Batch], period: int
    ) -> None:
        self._trace = trace
        self._lengths = lengths
        self._sizes = sizes
        self._batches = batches
        self._period = period
        self._known: dict[tuple[int, tuple[Numbers, ...]], list[int]] = {}

    @classmethod
    def of(cls, trace: Trace, sizes: Sequence[int]) -> Self | None:
        """The run that a trace is a part of; None where its batches are alike, or their events differ."""
        lengths = trace.lengths
        uses_streams = any(each.stream or each.stream_uses for each in trace.allocations)
        if lengths is None or trace.seen is None or not trace.seen.step_ends or uses_streams:
            return None
        batches = _batches_of(trace, lengths)
        period = _period_of(batches)
        return None if period is None else cls(trace, lengths, sizes, batches, period)

    @property
    def num_traced(self) -> int:
        """Batches whose events are those of the trace."""
        return len(self._batches)

    @property
    def num_events_of_batch(self) -> float:
        """On average."""
        return len(self._trace.events) / max(len(self._batches), 1)

    def drawn(self, order: Sequence[Numbers]) -> tuple[list[int], list[int]]:
        """The events of a run with batches of these numbers, and the sizes that they refer to.

        The model and the first batches, up to those that come again and again, are as they were traced.
        """
        batches = self._batches
        num_warm = len(batches) - self._num_steady
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
            around = tuple(numbers[min(max(place + shift, 0), len(numbers) - 1)] for shift in _SHIFTS)
            sizes += self._sizes_at(template, around)
            for event in batch.events:
                if isinstance(event, int):
                    events.append(first + event)
                elif isinstance(event, _Free):
                    events.append(~(firsts[place - event.ago] + event.number))
                else:
                    events.append(~event.allocation)
        return events, sizes

    @cached_property
    def _num_steady(self) -> int:
        """Batches from which on the same events come again, as many whole periods as there are."""
        events = [batch.events for batch in self._batches]
        steady = self._period
        while steady < len(events) and events[-steady - 1] == events[-steady - 1 + self._period]:
            steady += 1
        return steady - steady % self._period

    def _events_before(self, num_batches: int) -> list[int]:
        starts = self._lengths.starts
        stop = starts[num_batches] if num_batches < len(starts) else len(self._trace.events)
        return list(self._trace.events[:stop])

    def _sizes_at(self, template: int, around: tuple[Numbers, ...]) -> list[int]:
        key = template, around
        if key not in self._known:
            functions = self._functions[template % self._period]
            self._known[key] = [function.at(around[shift]) for shift, function in functions]
        return self._known[key]

    @cached_property
    def _functions(self) -> dict[int, list[tuple[int, Fitted]]]:
        """By place in the period, of each allocation which batch decides its bytes, and by what function."""
        num_steady = self._num_steady
        first = len(self._batches) - num_steady
        found: dict[int, list[tuple[int, Fitted]]] = {}
        for place in range(self._period):
            alike = [first + place + self._period * turn for turn in range(num_steady // self._period)]
            found[(first + place) % self._period] = self._functions_through(alike)
        return found

    def _functions_through(self, alike: Sequence[int]) -> list[tuple[int, Fitted]]:
        own = self._lengths.numbers
        inputs = [[own[min(max(number + shift, 0), len(own) - 1)] for number in alike] for shift in _SHIFTS]
        columns = zip(
            *(
                self._sizes[self._batches[number].first :][: self._batches[number].num_allocations]
                for number in alike
            ),
            strict=True,
        )
        fits = [fitted(each) for each in inputs]
        return [
            min(((place, fit(column)) for place, fit in enumerate(fits)), key=_by_error) for column in columns
        ]


def _by_error(found: tuple[int, Fitted]) -> tuple[float, int]:
    place, function = found
    return function.error, place


def _batches_of(trace: Trace, lengths: Lengths) -> list[_Batch]:
    """What each batch did up to the next one; of the last it is not known when that would have begun."""
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
                events.append(event - firsts[place])
                num_allocated += 1
            elif ~event in batch_of:
                other = batch_of[~event]
                events.append(_Free(place - other, ~event - firsts[other]))
            else:
                events.append(_FreeOfModel(~event))
        batches.append(_Batch(tuple(events), firsts[place], num_allocated - firsts[place]))
    return batches


def _period_of(batches: Sequence[_Batch]) -> int | None:
    """After how many batches the same events come again, at the end of those that were traced."""
    events = [batch.events for batch in batches]
    for period in range(1, min(_MOST_PERIOD, len(events) // 2) + 1):
        num_alike = 0
        while num_alike < len(events) - period and events[-1 - num_alike] == events[-1 - num_alike - period]:
            num_alike += 1
        if num_alike >= max(2 * period, round((1 - _MOST_WARM_UP) * len(events)) - period):
            return period
    return None
