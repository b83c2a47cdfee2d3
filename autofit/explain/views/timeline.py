"""The view `timeline`: what each device holds over the steps, by category, allocated and reserved.

A trace knows the order of its events and nothing of time, so the axis is the number of events.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.explain.profile import Phase, Profile
from autofit.explain.views.filters import Filters
from autofit.explain.views.selection import devices_of, phases_of
from autofit.explain.views.view import heading
from workers.allocator import ActionKind, History, Streams, record_history
from workers.trace import Category

NUM_MOMENTS = 400

_GAINS = {
    ActionKind.SEGMENT_ALLOC: 1,
    ActionKind.SEGMENT_MAP: 1,
    ActionKind.SEGMENT_FREE: -1,
    ActionKind.SEGMENT_UNMAP: -1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a device holds after every event, in bytes; all lists are as long as the events.

    Attributes:
        allocated: of live blocks.
        reserved: of segments.
        categories: of the live blocks of each category; together they are `allocated`.
    """

    allocated: list[int]
    reserved: list[int]
    categories: dict[Category, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The memory after so many events.

    Attributes:
        position: so many events came before.
        phase: that of the last of them.
        categories: bytes of live blocks; those that were asked for.
    """

    position: int
    phase: Phase
    allocated_bytes: int
    reserved_bytes: int
    categories: dict[Category, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One device over the steps.

    Attributes:
        peak: the first moment at which the most is allocated.
        peak_reserved_bytes: the most that is reserved.
        phase_peaks: the same as `peak` for every phase that has events.
        moments: the events in equal portions, of each the moment at which the most is allocated.
    """

    device: str
    peak: Moment
    peak_reserved_bytes: int
    phase_peaks: tuple[Moment, ...]
    moments: tuple[Moment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """The view `timeline`: the devices and steps that the filters choose.

    Attributes:
        categories: those to tell apart; what is allocated is the sum of all.
    """

    profile: Profile
    devices: tuple[str, ...]
    step: int | None
    categories: frozenset[Category]
    num_moments: int

    def lanes(self, num_moments: int) -> tuple[Lane, ...]:
        """The lanes, with so many moments."""
        found = timeline(self.profile, step=self.step, categories=self.categories, num_moments=num_moments)
        return tuple(lane for lane in found if lane.device in self.devices)

    def to_json(self) -> str:
        """The document."""
        lanes = [
            {
                "device": lane.device,
                "peak": _plain(lane.peak),
                "peak_reserved_bytes": lane.peak_reserved_bytes,
                "phase_peaks": [_plain(moment) for moment in lane.phase_peaks],
                "rows": [_plain(moment) for moment in lane.moments],
            }
            for lane in self.lanes(self.num_moments)
        ]
        document = {**heading("timeline", self.profile), "step": self.step, "lanes": lanes}
        return json.dumps(document, indent=2)


def timeline_view(profile: Profile, filters: Filters) -> TimelineView:
    """The view of a profile; of the filters it goes by the step, the device, the categories and `top`.

    Raises:
        UsageError: there is no such step, or another filter is set.
        NothingMatchesError: there is no such device, or nothing of the categories.
    """
    filters.require_only(("step", "device", "categories", "top"), "timeline")
    phases_of(profile, filters.step)
    present = {each.category for each in profile.trace.allocations}
    if filters.categories and not filters.categories & present:
        raise filters.nothing_matches()
    return TimelineView(
        profile=profile,
        devices=devices_of(profile, filters),
        step=filters.step,
        categories=filters.categories,
        num_moments=filters.top or NUM_MOMENTS,
    )


def timeline(
    profile: Profile,
    *,
    step: int | None = None,
    categories: Collection[Category] = (),
    num_moments: int = NUM_MOMENTS,
) -> tuple[Lane, ...]:
    """One lane for each device of a profile; none where the step has no events.

    Args:
        step: the one to show, 0 being the building of the model; all if None.
        categories: those to tell apart; all if empty. What is allocated stays the sum of all.
        num_moments: into about how many portions the events are divided.

    Raises:
        UsageError: the profile has no such step.
    """
    course = course_of(profile)
    wanted = [category for category in course.categories if not categories or category in categories]
    reader = _Reader(course, phases_of(profile, step), wanted)
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
        )
        for device in profile.devices
    )


def course_of(profile: Profile, history: History | None = None) -> Course:
    """What the device of a profile holds after every event.

    Args:
        history: of the profile's allocator, where it is known already.
    """
    events = profile.trace.events
    history = history or history_of(profile)
    reserved = [0] * len(events)
    for action in history.actions:
        if action.kind in _GAINS:
            reserved[action.position] += _GAINS[action.kind] * action.num_bytes
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
    """All that the allocator did in a profile, up to a number of events if it is given."""
    return record_history(
        profile.trace.events[:position],
        profile.requested_bytes,
        settings=profile.allocator_settings,
        found=profile.found_bytes,
        streams=Streams.of(profile.trace.allocations, profile.trace.host_waits),
    )


def _plain(moment: Moment) -> dict[str, Any]:
    return {
        "position": moment.position,
        "step": moment.phase.step,
        "phase": moment.phase.name,
        "allocated_bytes": moment.allocated_bytes,
        "reserved_bytes": moment.reserved_bytes,
        "categories": {category.value: num_bytes for category, num_bytes in moment.categories.items()},
    }


class _Reader:
    """Reads moments off a course, within some of its phases."""

    def __init__(self, course: Course, shown: Sequence[Phase], categories: Sequence[Category]) -> None:
        self.phases = [phase for phase in shown if phase.start < phase.stop]
        self.num_events = sum(phase.stop - phase.start for phase in shown)
        self._course = course
        self._categories = categories

    def highest(self, start: int, stop: int) -> Moment:
        """The first moment at which the most is allocated among the events of a range."""
        allocated = self._course.allocated[start:stop]
        return self._moment(start + allocated.index(max(allocated)))

    def portions(self, num_moments: int) -> tuple[Moment, ...]:
        """Of equal portions of the events the highest moments; a portion never spans two phases."""
        size = max(1, -(-self.num_events // num_moments))
        return tuple(
            self.highest(start, min(start + size, phase.stop))
            for phase in self.phases
            for start in range(phase.start, phase.stop, size)
        )

    def _moment(self, index: int) -> Moment:
        course = self._course
        return Moment(
            position=index + 1,
            phase=next(phase for phase in self.phases if phase.start <= index < phase.stop),
            allocated_bytes=course.allocated[index],
            reserved_bytes=course.reserved[index],
            categories={category: course.categories[category][index] for category in self._categories},
        )
