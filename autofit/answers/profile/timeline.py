"""Lays out a profile's timeline as sections: memory over the steps, and the peak of every phase."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.figures import StepMemory
from autofit.answers.profile.rows import about_times, hidden, profiled, sums
from autofit.answers.section import Column, Figure, Paragraph, Section, Table, left, right, table
from autofit.answers.words.numbers import exact, seconds_in_words, size_or_nothing
from autofit.explain.timing import Timing
from autofit.explain.views.timeline import Lane, Moment, TimelineView
from autofit.units import format_bytes


def timeline_sections(view: TimelineView, num_phases: int | None, *, num_moments: int) -> Iterator[Section]:
    """Yields for each device a figure of its memory over the steps, and a table of each phase's peak.

    Args:
        num_phases: number of phases (such as `step 2 backward`) in the table, those with the highest peaks;
            None for all.
        num_moments: number of columns of the figure, each with the memory at one moment.
    """
    yield profiled(view.profile)
    for lane in view.lanes(num_moments):
        legend = Paragraph(f"{lane.device} █ allocated  ░ reserved, not allocated", "strong", (lane.device,))
        yield Section(name=f"step-{lane.device}", blocks=(legend, Figure(StepMemory(lane=lane))))
        phases = _phases(lane, view.timing, num_phases)
        yield Section(
            name=f"phases-{lane.device}",
            blocks=(phases, *hidden(len(lane.phase_peaks) - len(phases.rows))),
        )
        yield sums(_sums(lane, view), of=lane.device)


def _phases(lane: Lane, timing: Timing | None, num_phases: int | None) -> Table:
    """Table of the phases with the highest peaks, in their order in time."""
    highest = sorted(lane.phase_peaks, key=lambda moment: -moment.allocated_bytes)[:num_phases]
    shown = sorted(highest, key=lambda moment: moment.position)
    categories = [c for c in lane.peak.categories if any(moment.categories[c] for moment in shown)]
    return table(
        (
            left("phase"),
            *_axis_columns(timing),
            right("allocated peak"),
            right("reserved"),
            *(right(category.value.replace("_", " ")) for category in categories),
        ),
        (
            (
                f"{moment.phase.label} ▲" if moment == lane.peak else moment.phase.label,
                *((f"{moment.position:,}",) if timing is None else _times(lane, moment, timing)),
                format_bytes(moment.allocated_bytes),
                format_bytes(moment.reserved_bytes),
                *(size_or_nothing(moment.categories[category]) for category in categories),
            )
            for moment in shown
        ),
        fit="whole",
    )


def _axis_columns(timing: Timing | None) -> tuple[Column, ...]:
    if timing is None:
        return (right("after events"),)
    of_step = " of the step" if timing.seconds is None else ""
    return right(f"peak at{of_step}"), right(f"device works{of_step}")


def _times(lane: Lane, moment: Moment, timing: Timing) -> Iterator[str]:
    """Yields two texts on a phase: when its peak is reached, and how long its operators take on the GPU.

    Both are in seconds, or in shares of the step if seconds are not predicted.

    Args:
        moment: peak of the phase, one of `lane.phase_peaks`.
    """
    for share in (moment.step_share or 0.0, lane.phase_shares[lane.phase_peaks.index(moment)]):
        seconds = timing.seconds_of(share)
        yield f"{share:.1%}" if seconds is None else seconds_in_words(seconds)


def _sums(lane: Lane, view: TimelineView) -> Iterator[str]:
    """Yields lines on the allocated and reserved peak of a timeline, and on its times."""
    profile, peak = view.profile, lane.peak
    num_events = len(profile.trace.events)
    yield (
        f"▲ allocated peak {format_bytes(peak.allocated_bytes)} ({exact(peak.allocated_bytes)}): "
        f"{peak.phase.label}, after {peak.position:,} of {num_events:,} events; from left to right is "
        f"{'their order' if view.timing is None else 'time, as the device comes to them'}"
    )
    yield (
        f"on {profile.card}: reserved peak {format_bytes(lane.peak_reserved_bytes)} "
        f"({exact(lane.peak_reserved_bytes)})"
    )
    if view.timing is not None:
        yield from about_times(profile, view.timing, profile.time_note)
