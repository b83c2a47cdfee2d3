"""Lays out the time of a step, by classes of kernels and by modules, as sections of tables."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.figures import ModuleTimes, Roofline, Times
from autofit.answers.section import Figure, Paragraph, Section, Table, left, right, table
from autofit.answers.words.numbers import seconds_in_words, span_of_seconds, three_digits
from autofit.explain.profile import Profile
from autofit.explain.timing import Timing
from autofit.explain.views.device_time import class_times, module_times

_NUM_MODULES = 24
_LEAST_PERCENT = 0.0005  # smallest share of the step that rounds to 0.1 %
_FLOPS_UNITS = (("PFLOP/s", 1e15), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6))


def time_sections(profile: Profile, at: str) -> Iterator[Section]:
    """Yields sections on a step's time: a roofline plot by kernel class, and the time by module.

    Yields nothing if the profile has no predicted times.

    Args:
        at: words for the titles that name the configuration, such as `at batch 70`.
    """
    timing = profile.timing
    if timing is None or not timing.calls:
        return
    times = Times(
        timing=timing, note=profile.time_note, classes=class_times(timing), modules=module_times(profile)
    )
    if times.classes:
        yield Section(
            name="roofline",
            title=f"How near kernels come to the card's limits {at}",
            blocks=(Paragraph(_about_roofline(timing)), Figure(Roofline(times)), _class_table(times)),
        )
    zoom = "Click a module to zoom in, and the bar above to zoom out; the table has each without what is in "
    yield Section(
        name="time",
        title=f"Which module takes the time {at}",
        blocks=(
            Paragraph(f"{_about_seconds(times)} {zoom}its submodules."),
            Figure(ModuleTimes(times)),
            _module_table(times),
        ),
    )


def _about_roofline(timing: Timing) -> str:
    dots = "A dot is a class of kernels, its area the share of the step's time that they take."
    if timing.seconds is None:
        dots += " It stands at its roof, the most that the card allows, as no seconds are said."
    else:
        dots += " Predicted."
    return (
        f"{dots} The slope is the memory's roof, beyond which only what the cache still has can take a "
        "kernel; the level roofs are of arithmetic. Kernels without products count one operation for each "
        "element that they move."
    )


def _about_seconds(times: Times) -> str:
    timing = times.timing
    waits = f"{timing.waiting_share:.1%} of the step the device waits for the host."
    note = f"{times.note[:1].upper()}{times.note[1:]}."
    if timing.seconds is None:
        return f"Shares of the step's time on the device; {waits} {note}"
    return f"A step is predicted to take {span_of_seconds(timing.seconds)}; {waits} {note}"


def _class_table(times: Times) -> Table:
    """Table of the kernel classes, with the numbers that label their dots in the roofline plot."""
    timing, is_stated = times.timing, times.timing.seconds is not None
    rows = [
        (
            str(number),
            each.name,
            _percent(each.share),
            *_seconds(timing, each.share),
            three_digits(each.intensity),
            *(
                (_flops(each.attained_flops(timing)), _flops(each.most_flops))
                if is_stated
                else (_flops(each.most_flops),)
            ),
            "memory" if each.is_bound_by_memory else "arithmetic",
        )
        for number, each in enumerate(times.classes, 1)
    ]
    attained = ("time", "FLOPs a byte", "attained", "at most") if is_stated else ("FLOPs a byte", "at most")
    numbers = map(right, ("of the step", *attained))
    return table((right(), left("kernels"), *numbers, left("limited by")), rows)


def _module_table(times: Times) -> Table:
    """Table of the modules whose own operators take the most time; those of submodules are not counted."""
    timing = times.timing
    heaviest = sorted((each for each in times.modules if each.own_share), key=lambda each: -each.own_share)
    has_types = any(each.module_type for each in times.modules)
    rows = [
        (
            each.path or "(in no submodule)",
            *((each.module_type,) if has_types else ()),
            each.kind,
            _percent(each.own_share),
            *_seconds(timing, each.own_share),
        )
        for each in heaviest[:_NUM_MODULES]
    ]
    others = heaviest[_NUM_MODULES:]
    if others:
        share = sum(each.own_share for each in others)
        blanks = ("",) * (2 if has_types else 1)
        rows.append((f"{len(others)} others", *blanks, _percent(share), *_seconds(timing, share)))
    columns = (
        left("module"),
        *((left("class"),) if has_types else ()),
        left("mostly in kernels of"),
        right("of the step"),
        *(() if timing.seconds is None else (right("time"),)),
    )
    return table(columns, rows)


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < _LEAST_PERCENT else f"{share:.1%}"


def _seconds(timing: Timing, share: float) -> tuple[str, ...]:
    """Tuple with one cell, the likely seconds of a share of the step; empty if seconds are not predicted.

    Args:
        share: share of the step's time, from 0 to 1.
    """
    seconds = timing.seconds_of(share)
    return () if seconds is None else (seconds_in_words(seconds),)


def _flops(flops: float | None) -> str:
    """Text of a rate of floating-point operations, such as `71.2 TFLOP/s`.

    Args:
        flops: operations a second; must not be None.
    """
    assert flops is not None
    unit, factor = next((each for each in _FLOPS_UNITS if flops >= each[1]), _FLOPS_UNITS[-1])
    return f"{three_digits(flops / factor)} {unit}"
