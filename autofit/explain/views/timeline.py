"""View `timeline`: allocated memory by category, and reserved memory, of each device over the steps.

A trace has the order of its events and no times, so the axis of the view is the number of events. If the
filters order by seconds, the axis is the predicted time of one step, as the device runs it.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.explain.profile import Phase, Profile, timed_step
from autofit.explain.timing import EventClock, Timing
from autofit.explain.views.filters import SECONDS, Filters
from autofit.explain.views.selection import devices_of, phases_of, timing_of
from autofit.explain.views.view import heading, plain_times
from autofit_workers.replay.allocator import History, Streams, record_history
from autofit_workers.spec.trace import Category

NUM_MOMENTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Memory of a device after every memory event, in bytes; each list has an entry for each event.

    Attributes:
        allocated: bytes of live blocks.
        reserved: bytes of the allocator's segments.
        categories: bytes of live blocks by category (activations, …); they add up to `allocated`.
    """

    allocated: list[int]
    reserved: list[int]
    categories: dict[Category, list[int]]

    def change_bytes(self, start: int, stop: int) -> int:
        """Bytes by which allocated memory grows from one moment to another; negative if it shrinks.

        Args:
            start, stop: numbers of memory events before the two moments.
        """
        before, after = (self.allocated[position - 1] if position else 0 for position in (start, stop))
        return after - before


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Memory of a device at one moment: after `position` memory events.

    Attributes:
        position: number of events before the moment.
        phase: phase in which the last of these events lies.
        categories: bytes of live blocks by category, for the selected categories.
        step_share: time of the moment as a share of the step's time; None if the axis is the order of events.
    """

    position: int
    phase: Phase
    allocated_bytes: int
    reserved_bytes: int
    categories: dict[Category, int]
    step_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Timeline of one device's memory over one or more steps.

    Attributes:
        device: name of the device, such as `cuda:0`.
        peak: first moment with the most allocated bytes.
        peak_reserved_bytes: the most reserved bytes.
        phase_peaks: for each phase that has events, its first moment with the most allocated bytes.
        moments: for each of about equal portions of the events, or of the time, the moment with the most
            allocated bytes.
        phase_shares: for each of `phase_peaks`, the share of the step's time that the phase's operators take
            on the device; empty if the axis is the order of events.
    """

    device: str
    peak: Moment
    peak_reserved_bytes: int
    phase_peaks: tuple[Moment, ...]
    moments: tuple[Moment, ...]
    phase_shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """View `timeline` of a profile: memory over the steps, for the devices and steps that the filters choose.

    Attributes:
        devices: names of the devices.
        step: number of the step; None for all steps.
        categories: categories to show separately, all if empty; allocated bytes are always the sum of all.
        num_moments: about how many moments the JSON document has for each device.
        timing: predicted times of the step whose time is the axis; None if the axis is the order of events.
    """

    profile: Profile
    devices: tuple[str, ...]
    step: int | None
    categories: frozenset[Category]
    num_moments: int
    timing: Timing | None = None

    def lanes(self, num_moments: int) -> tuple[Lane, ...]:
        """Timelines of the view, one for each device.

        Args:
            num_moments: about how many moments each timeline has.
        """
        found = timeline(
            self.profile,
            step=self.step,
            categories=self.categories,
            num_moments=num_moments,
            timing=self.timing,
        )
        return tuple(lane for lane in found if lane.device in self.devices)

    def to_json(self) -> str:
        """JSON document of the view `timeline`."""
        lanes = [
            {
                "device": lane.device,
                "peak": self._plain(lane.peak),
                "peak_reserved_bytes": lane.peak_reserved_bytes,
                "phase_peaks": [self._plain(moment) for moment in lane.phase_peaks],
                "phase_shares": lane.phase_shares,
                "rows": [self._plain(moment) for moment in lane.moments],
            }
            for lane in self.lanes(self.num_moments)
        ]
        document = {
            **heading("timeline", self.profile),
            "step": self.step,
            "times": plain_times(self.profile, self.timing, self.profile.time_note),
            "lanes": lanes,
        }
        return json.dumps(document, indent=2)

    def _plain(self, moment: Moment) -> dict[str, Any]:
        timing, share = self.timing, moment.step_share
        return {
            "position": moment.position,
            "step": moment.phase.step,
            "phase": moment.phase.name,
            "step_share": share,
            "seconds": None if timing is None or share is None else timing.seconds_of(share),
            "allocated_bytes": moment.allocated_bytes,
            "reserved_bytes": moment.reserved_bytes,
            "categories": {category.value: num_bytes for category, num_bytes in moment.categories.items()},
        }


def timeline_view(profile: Profile, filters: Filters) -> TimelineView:
    """View `timeline` of a profile: memory over the steps.

    It uses only the filters for step, device, categories and `top`. With `--order-by seconds` it shows the
    step with predicted times, along its time.

    Raises:
        UsageError: there is no such step, another filter is set, or there are no times to order by.
        NothingMatchesError: there is no such device, or no allocation of the categories.
    """
    by_time = filters.order_by == SECONDS
    used = ("step", "device", "categories", "top", *(("order_by",) if by_time else ()))
    filters.require_only(used, "timeline")
    phases_of(profile, filters.step)
    # Categories have no times of their own, but the times of their events are known.
    timing, _ = timing_of(profile, dataclasses.replace(filters, categories=frozenset()))
    present = {each.category for each in profile.trace.allocations}
    if filters.categories and not filters.categories & present:
        raise filters.nothing_matches()
    return TimelineView(
        profile=profile,
        devices=devices_of(profile, filters),
        step=timed_step(profile) if by_time else filters.step,
        categories=filters.categories,
        num_moments=filters.top or NUM_MOMENTS,
        timing=timing if by_time else None,
    )


def timeline(
    profile: Profile,
    *,
    step: int | None = None,
    categories: Collection[Category] = (),
    num_moments: int = NUM_MOMENTS,
    timing: Timing | None = None,
) -> tuple[Lane, ...]:
    """Timelines of a profile's memory, one for each device; empty if the step has no events.

    Args:
        step: number of the step to show, 0 for building the model; None for all steps.
        categories: categories to show separately; all if empty. Allocated bytes are always the sum of all.
        num_moments: about how many portions the events are divided into.
        timing: predicted times of the step, if its time is to be divided; None to divide the events.

    Raises:
        UsageError: the profile has no such step.
    """
    course = course_of(profile)
    wanted = [category for category in course.categories if not categories or category in categories]
    shown = phases_of(profile, step)
    clock = None if timing is None else EventClock.of_device(timing, shown[0].start, shown[-1].stop)
    reader = _Reader(course, shown, wanted, clock)
    if not reader.phases:
        return ()
    phase_peaks = tuple(reader.highest(phase.start, phase.stop) for phase in reader.phases)
    return tuple(
        Lane(
            device=device,
            peak=max(phase_peaks, key=lambda moment: moment.allocated_bytes),
            peak_reserved_bytes=max(max(course.reserved[p.start : p.stop]) for p in reader.phases),
            phase_peaks=phase_peaks,
            moments=reader.portions(num_moments),
            phase_shares=() if timing is None else _phase_shares(timing, reader.phases),
        )
        for device in profile.devices
    )


def course_of(profile: Profile) -> Course:
    """Memory of a profile's device after every memory event: allocated, reserved, and by category."""
    events = profile.trace.events
    reserved = [0] * len(events)
    for action in history_of(profile).actions:
        if action.kind.reserves:
            reserved[action.position] += action.kind.reserves * action.num_bytes
    changes: dict[Category, list[int]] = {}
    for position, event in enumerate(events):
        number = event if event >= 0 else ~event
        num_bytes = profile.block_bytes[number]
        category = profile.trace.allocations[number].category
        if category not in changes:
            changes[category] = [0] * len(events)
        changes[category][position] = num_bytes if event >= 0 else -num_bytes
    categories = {
        category: list(itertools.accumulate(changes[category]))
        for category in Category
        if category in changes
    }
    return Course(
        allocated=[sum(column) for column in zip(*categories.values(), strict=True)],
        reserved=list(itertools.accumulate(reserved)),
        categories=categories,
    )


def history_of(profile: Profile, position: int | None = None) -> History:
    """All actions of a profile's allocator, such as new segments, and the memory they leave.

    They are the simulated allocator's, or of a recorded profile the real one's.

    Args:
        position: number of memory events after which to stop; None for all.
    """
    if profile.recorded is not None:
        return profile.recorded.history(position)
    return record_history(
        profile.trace.events[:position],
        profile.requested_bytes,
        settings=profile.allocator_settings,
        found=profile.found_bytes,
        streams=Streams.of(profile.trace.allocations, profile.trace.host_waits),
    )


def _phase_shares(timing: Timing, shown: Sequence[Phase]) -> tuple[float, ...]:
    """Share of the step's time that the operators of each phase take on the device.

    Args:
        timing: predicted times of the step.
        shown: phases of the step (forward, backward, …), in order of time.
    """
    starts = [phase.start for phase in shown]
    shares = [0.0] * len(shown)
    for call in timing.calls:
        shares[max(bisect.bisect_right(starts, call.position) - 1, 0)] += call.share
    return tuple(shares)


class _Reader:
    """Finds the moments of highest memory of a device within some phases.

    Args:
        course: memory of the device after every event.
        shown: phases (forward, backward, …), in order of time and without gaps.
        categories: memory categories that a moment lists separately.
        clock: times of the events, to divide the step's time; None to divide the events.
    """

    def __init__(
        self,
        course: Course,
        shown: Sequence[Phase],
        categories: Sequence[Category],
        clock: EventClock | None = None,
    ) -> None:
        self.phases = [phase for phase in shown if phase.start < phase.stop]
        self.num_events = sum(phase.stop - phase.start for phase in shown)
        self._course = course
        self._categories = categories
        self._clock = clock

    def highest(self, start: int, stop: int) -> Moment:
        """First moment with the most allocated memory in a range of at least one event.

        Args:
            start: index of the first event of the range.
            stop: index after its last event.
        """
        allocated = self._course.allocated[start:stop]
        return self._moment(start + allocated.index(max(allocated)))

    def portions(self, num_moments: int) -> tuple[Moment, ...]:
        """Moment of highest memory in each of about `num_moments` equal portions of the step.

        Portions are of the step's time if it is known, else of its events; one of events never spans two
        phases.
        """
        if self._clock is not None:
            return self._portions_of_time(self._clock, num_moments)
        size = max(1, -(-self.num_events // num_moments))
        return tuple(
            self.highest(start, min(start + size, phase.stop))
            for phase in self.phases
            for start in range(phase.start, phase.stop, size)
        )

    def _portions_of_time(self, clock: EventClock, num_moments: int) -> tuple[Moment, ...]:
        """Moment of highest memory in each of `num_moments` equal portions of the step's time.

        A portion counts the memory with which it begins, so that portions without events have a moment too.

        Args:
            clock: times of the events.
        """
        first, last = self.phases[0].start, self.phases[-1].stop
        times = [clock.of_event(index) for index in range(first, last)]
        found = []
        for number in range(num_moments):
            start, stop = (bisect.bisect_left(times, end / num_moments) for end in (number, number + 1))
            moment = self.highest(first + max(start - 1, 0), first + max(stop, 1))
            found.append(dataclasses.replace(moment, step_share=number / num_moments))
        return tuple(found)

    def _moment(self, index: int) -> Moment:
        course = self._course
        return Moment(
            position=index + 1,
            phase=next(phase for phase in self.phases if phase.start <= index < phase.stop),
            allocated_bytes=course.allocated[index],
            reserved_bytes=course.reserved[index],
            categories={category: course.categories[category][index] for category in self._categories},
            step_share=None if self._clock is None else self._clock.of_event(index),
        )
