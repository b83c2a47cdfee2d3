"""Selects what a view shows: allocations of one step, by category, and its timed operators."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from autofit.errors import UsageError
from autofit.explain.profile import (
    Lifetimes,
    Phase,
    Profile,
    allocated_after,
    lifetimes,
    peak_position,
    phase_of,
    phases,
    timed_step,
)
from autofit.explain.sizes import Sizes
from autofit.explain.timing import TimedCall, Timing
from autofit.explain.views.filters import SECONDS, Filters, NothingMatchesError


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Allocations that a view of a step shows: those of the step, and earlier ones alive at its peak.

    Views of a step thus show parameters and the optimizer's state besides the step's own allocations, and
    their bytes at the peak add up to the allocated peak.

    Attributes:
        step: number of the step, 0 for building the model.
        position: number of memory events until the step first reached its peak.
        peak_allocated_bytes: bytes of the blocks alive at the peak, of all categories.
        phases: phases of the whole profile.
        lives: when each allocation was made and freed.
        numbers: indices of the selected allocations, ascending.
        timing: predicted times of the last whole step, whose operators stand for those of every step; None
            if there are no times for the selection.
        time_note: sentence on the basis of the times, or on why there are no times or no seconds.
    """

    profile: Profile
    step: int
    position: int
    peak_allocated_bytes: int
    phases: tuple[Phase, ...]
    lives: Lifetimes
    _starts: tuple[int, ...] = field(repr=False)
    numbers: tuple[int, ...] = ()
    timing: Timing | None = None
    time_note: str = ""

    @property
    def calls(self) -> tuple[TimedCall, ...]:
        """Calls of operators with predicted times; empty if there are no times."""
        return () if self.timing is None else self.timing.calls

    def phase_of_call(self, call: TimedCall) -> Phase:
        """Phase of the step (forward, backward, …) in which an operator call runs."""
        return self._phase_at(call.position)

    def birth(self, number: int) -> Phase:
        """Phase of a step (forward, backward, …) in which an allocation was made.

        Args:
            number: index of the allocation in the trace.
        """
        return self._phase_at(self.lives.births[number])

    def death(self, number: int) -> Phase | None:
        """Phase of a step (forward, backward, …) in which an allocation was freed; None if it never was.

        Args:
            number: index of the allocation in the trace.
        """
        event = self.lives.deaths[number]
        return None if event >= len(self.profile.trace.events) else self._phase_at(event)

    def _phase_at(self, event: int) -> Phase:
        return self.phases[max(bisect.bisect_right(self._starts, event) - 1, 0)]

    def is_at_peak(self, number: int) -> bool:
        return self.lives.births[number] < self.position <= self.lives.deaths[number]

    def sizes(self, numbers: Iterable[int], calls: Iterable[TimedCall] = ()) -> Sizes:
        """Totals of some allocations and operators: bytes, number, and share of the step's time.

        Args:
            numbers: indices of the allocations.
            calls: calls of operators with predicted times.
        """
        requested_bytes = peak_bytes = count = 0
        for number in numbers:
            requested_bytes += self.profile.requested_bytes[number]
            peak_bytes += self.profile.block_bytes[number] if self.is_at_peak(number) else 0
            count += 1
        return Sizes(
            requested_bytes=requested_bytes,
            peak_bytes=peak_bytes,
            count=count,
            step_share=sum(call.share for call in calls),
        )

    @property
    def total(self) -> Sizes:
        return self.sizes(self.numbers, self.calls)


def select(profile: Profile, filters: Filters) -> Selection:
    """Allocations and timed operators that a view shows, as the filters choose step, device and categories.

    Without a step in the filters, it is the one with the peak; if rows are ordered by time, the one with
    predicted times.

    Raises:
        UsageError: there is no such step or device, or rows are to be ordered by times that are unknown.
        NothingMatchesError: no allocation of the categories is alive in the step.
    """
    devices_of(profile, filters)
    timing, time_note = timing_of(profile, filters)
    step = filters.step
    if step is None and filters.order_by == SECONDS:
        step = timed_step(profile)
    if step is None:
        step = phase_of(profile, peak_position(profile)).step
    bounds = phases_of(profile, step)
    found = phases(profile)
    lives = lifetimes(profile)
    start, stop = bounds[0].start, bounds[-1].stop
    position = peak_position(profile, start, stop)
    selection = Selection(
        profile=profile,
        step=step,
        position=position,
        peak_allocated_bytes=allocated_after(profile)[position - 1] if position > start else 0,
        phases=found,
        lives=lives,
        _starts=tuple(phase.start for phase in found),
        timing=timing,
        time_note=time_note,
    )
    numbers = tuple(
        number
        for number, allocation in enumerate(profile.trace.allocations)
        if (not filters.categories or allocation.category in filters.categories)
        and (start <= lives.births[number] < stop or selection.is_at_peak(number))
    )
    if not numbers:
        raise filters.nothing_matches()
    return dataclasses.replace(selection, numbers=numbers)


def timing_of(profile: Profile, filters: Filters) -> tuple[Timing | None, str]:
    """Predicted times for the step that the filters choose, with a note on where they come from.

    Without times, they are None and the note is the reason, such as that another step has them.

    Raises:
        UsageError: the filters need times, and there are none.
    """
    timed = timed_step(profile)
    if profile.timing is None:
        found, note = None, profile.time_note
    elif filters.step not in (None, timed):
        found, note = None, f"times are those of step {timed}: choose --step {timed}"
    elif filters.categories:
        found, note = None, "an operator's time is not of one category: leave out --category to see times"
    else:
        found, note = profile.timing, profile.time_note
    if found is None and (asking := filters.asking_for_seconds):
        raise UsageError(f"{asking}: {note}")
    return found, note


def phases_of(profile: Profile, step: int | None) -> list[Phase]:
    """Phases (forward, backward, …) of one step of a profile.

    Args:
        step: number of the step, 0 for building the model; None for the phases of all steps.

    Raises:
        UsageError: there is no such step.
    """
    found = phases(profile)
    chosen = [phase for phase in found if step in (None, phase.step)]
    if not chosen:
        steps = sorted({phase.step for phase in found})
        raise UsageError(f"--step: the profile has no step {step}; choose from {', '.join(map(str, steps))}")
    return chosen


def devices_of(profile: Profile, filters: Filters) -> tuple[str, ...]:
    """Names of a profile's devices that match the filter on devices; all if it is not set.

    Raises:
        NothingMatchesError: no device matches.
    """
    pattern = filters.device
    chosen = tuple(name for name in profile.devices if pattern is None or pattern.search(name))
    if pattern is not None and not chosen:
        raise NothingMatchesError(
            f"nothing matches --device {pattern.pattern!r}: the profile has {', '.join(profile.devices)}"
        )
    return chosen
