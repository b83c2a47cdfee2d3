"""Builds the tables of an HTML report."""

from __future__ import annotations

from collections.abc import Mapping

from autofit.explain.timing import Timing
from autofit.hardware.budget import outside_allocator
from autofit.report.html.content import CATEGORY_NAMES, Table, Times
from autofit.report.words import PeakNames, rate, seconds_in_words, three_digits
from autofit.settings.words import in_short
from autofit.tuning.compared import ParallelAnswer
from autofit.tuning.found import FrontierEntry
from autofit.tuning.result import TuneResult
from autofit.units import format_bytes, size_or_dash
from autofit_workers.spec.trace import Category

_NUM_MODULES = 24
_LEAST_PERCENT = 0.0005  # which rounds to 0.1 %
_FLOPS_UNITS = (("PFLOP/s", 1e15), ("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("MFLOP/s", 1e6))


def frontier_table(result: TuneResult) -> Table:
    """Table of the knob settings, the largest batch first: what fits, why the next fails, the evidence."""
    entries = sorted(result.frontier, key=lambda entry: -(entry.largest_batch or 0))
    timed = any(entry.samples_per_second is not None for entry in entries)
    names = result.setting_names
    is_cpu = result.device.kind == "cpu"
    peak = "resident peak" if is_cpu else "reserved peak"
    columns = ("setting", "largest batch", peak, *(("samples a second",) if timed else ()), "fails at")
    rows = [
        (
            names[entry.knobs] + _mark(entry, result),
            "none" if entry.largest_batch is None else str(entry.largest_batch),
            size_or_dash(entry.device_peak_bytes if is_cpu else entry.peak_reserved_bytes),
            *((_rate(entry),) if timed else ()),
            "–" if entry.first_failing_batch is None else str(entry.first_failing_batch),
            f"{entry.reason}.",
            entry.evidence,
        )
        for entry in entries
    ]
    return Table(
        columns=(*columns, "why not larger", "evidence"),
        rows=tuple(rows),
        numeric=frozenset(range(1, len(columns))),
    )


def parallels_table(result: TuneResult) -> Table:
    """Table of the parallelisms compared, the largest global batch first; a refused one has its reason."""
    ordered = sorted(result.parallels, key=lambda one: -(_global_batch(one) or 0))
    rows = [
        (
            one.parallel,
            "none" if best is None else str(best.samples_per_step),
            "none" if best is None else str(best.batch_size),
            "–" if best is None else in_short(best.knobs),
            "–" if one.budget is None else format_bytes(one.budget.usable_bytes),
            one.refused and f"{one.refused}.",
        )
        for one in ordered
        for best in (one.best,)
    ]
    return Table(
        columns=("parallel", "global batch", "batch of a rank", "setting", "usable", "why not"),
        rows=tuple(rows),
        numeric=frozenset((1, 2, 4)),
    )


def _global_batch(one: ParallelAnswer) -> int | None:
    return None if one.best is None else one.best.samples_per_step


def breakdown_table(
    categories: Mapping[Category, int],
    *,
    reserved_bytes: int,
    context_bytes: int,
    architecture: str,
    exchanges: bool,
    runs_out: bool = False,
) -> Table:
    """Table of the memory alive at the allocated peak, and of what is added up to the device peak.

    Args:
        categories: bytes of live blocks at the peak.
        reserved_bytes: the likely reserved peak.
        architecture: the architecture of the card.
        runs_out: whether memory runs out on the card, so that the peaks are what is needed.
        exchanges: whether the process exchanges anything with others.
    """
    names = PeakNames.of(architecture, runs_out=runs_out)
    allocated = sum(categories.values())
    parts = ((CATEGORY_NAMES[category], size) for category, size in categories.items() if size)
    rows = sorted(parts, key=lambda part: -part[1])
    rows += [
        ("= allocated peak", allocated),
        ("+ held by the allocator, not in use", reserved_bytes - allocated),
        (f"= {names.reserved}", reserved_bytes),
        (f"+ {outside_allocator(architecture, exchanges=exchanges)}, assumed", context_bytes),
        (f"= {names.device}, {names.of_device}", reserved_bytes + context_bytes),
    ]
    return Table(
        columns=("", "size", "bytes", "of allocated"),
        rows=tuple(
            (name, format_bytes(size), f"{size:,}", "" if name[0] in "=+" else f"{size / allocated:.1%}")
            for name, size in rows
        ),
        numeric=frozenset((1, 2, 3)),
    )


def class_table(times: Times) -> Table:
    """Table of the kernel classes, numbered as in the roofline plot."""
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
    columns = ("", "kernels", "of the step", *attained)
    return Table(
        columns=(*columns, "limited by"),
        rows=tuple(rows),
        numeric=frozenset({0, *range(2, len(columns))}),
    )


def module_time_table(times: Times) -> Table:
    """Table of the modules with the most time of their own, without their children's."""
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
    columns = ("module", *(("class",) if has_types else ()), "mostly in kernels of", "of the step")
    columns = (*columns, *(() if timing.seconds is None else ("time",)))
    return Table(
        columns=columns, rows=tuple(rows), numeric=frozenset(range(3 if has_types else 2, len(columns)))
    )


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < _LEAST_PERCENT else f"{share:.1%}"


def _seconds(timing: Timing, share: float) -> tuple[str, ...]:
    """Table cell with the seconds of a share of the step, as a tuple; empty where seconds are unknown."""
    seconds = timing.seconds_of(share)
    return () if seconds is None else (seconds_in_words(seconds),)


def _flops(flops: float | None) -> str:
    """Operations a second as text: `71.2 TFLOP/s`."""
    assert flops is not None
    unit, factor = next((each for each in _FLOPS_UNITS if flops >= each[1]), _FLOPS_UNITS[-1])
    return f"{three_digits(flops / factor)} {unit}"


def _mark(entry: FrontierEntry, result: TuneResult) -> str:
    """Suffix for the name of the recommended knob setting or the one with the largest batch; else empty."""
    if result.chosen is not None and entry.knobs == result.chosen.knobs:
        return " — recommended" if result.recommended is not None else " — the best"
    return " — the largest" if result.best is not None and entry.knobs == result.best.knobs else ""


def _rate(entry: FrontierEntry) -> str:
    return "–" if entry.samples_per_second is None else rate(entry.samples_per_second)
