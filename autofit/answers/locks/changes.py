"""Lays out comparisons of memory before and after: a table of peaks, and for each what changed by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autofit.answers.section import (
    Block,
    Bullets,
    Cell,
    Mark,
    Paragraph,
    Section,
    Table,
    left,
    right,
    table,
)
from autofit.answers.words.numbers import seconds_in_words
from autofit.locks.checking import LockCheck
from autofit.locks.diff import MemoryDiff
from autofit.locks.growth import Change, Comparison, LineChange, Memory
from autofit.locks.lock_file import ANY_CARD, UPDATE_COMMAND
from autofit.locks.locked import LockedAnswer
from autofit.units import format_bytes

NUM_LINES = 20  # lines that a text lists for each configuration
_MARKS: dict[Change, Mark] = {
    Change.GREW: "bad",
    Change.SAME: "quiet",
    Change.SHRANK: "good",
    Change.NEW: "quiet",
}


def lock_check_sections(check: LockCheck) -> Iterator[Section]:
    """Yields the sections of a check against a lock: its verdict, the peaks, and the lines that grew."""
    grown = [each for each in check.configurations if each.change is Change.GREW]
    allowed = f"{100 * check.tolerance:g}"
    if grown:
        said = f"memory grew by more than {allowed}% since it was locked in {check.file}"
    else:
        said = f"no peak grew by more than {allowed}% since it was locked in {check.file}"
    verdict = Paragraph(said, "bad" if grown else "good")
    yield Section(name="verdict", blocks=(verdict,))
    yield Section(name="peaks", title="Peaks", blocks=(peaks_table(check.configurations, "locked", "now"),))
    for each in grown:
        yield lines_section(each, "locked", "now")
    if notes := tuple(_notes(check, is_grown=bool(grown))):
        yield Section(name="notes", blocks=(Bullets(notes),))


def _notes(check: LockCheck, *, is_grown: bool) -> Iterator[str]:
    """Yields sentences on what to do after a check."""
    if is_grown:
        yield f"if that is meant to be, `{UPDATE_COMMAND}` accepts it: commit the lock with the change"
    if shrunk := check.shrunk:
        names = ", ".join(dict.fromkeys(each.name for each in shrunk))
        verb = "needs" if len(shrunk) == 1 else "need"
        yield f"{names} {verb} less than locked: `{UPDATE_COMMAND}` keeps it from growing back"
    yield from check.notes


def locked_sections(answer: LockedAnswer) -> Iterator[Section]:
    """Yields the sections of what `autofit lock` wrote: the file, the peaks, and what changed by line."""
    done = "written" if answer.is_changed else "as it was"
    yield Section(name="file", blocks=(Paragraph(f"{answer.file}: {done}", "strong", (answer.file,)),))
    peaks = peaks_table(answer.configurations, "before", "now")
    yield Section(name="peaks", title="Peaks", blocks=(peaks,))
    for each in answer.configurations:
        if each.change not in (Change.NEW, Change.SAME):
            yield lines_section(each, "before", "now")


def diff_sections(diff: MemoryDiff, *, most: int | None = NUM_LINES) -> Iterator[Section]:
    """Yields the sections of a memory diff: what is compared, the peaks, and what changed by line.

    Args:
        diff: the diff.
        most: most lines to list for each configuration; None for all.
    """
    names = diff.before.title, diff.after.title
    said = Paragraph(f"memory of {names[0]} → {names[1]}", "strong", names)
    yield Section(name="sides", blocks=(said,))
    peaks = peaks_table(diff.configurations, "before", "after")
    yield Section(name="peaks", title="Peaks", blocks=(peaks,))
    for each in diff.configurations:
        yield lines_section(each, "before", "after", most=most)
    if diff.notes:
        yield Section(name="notes", blocks=(Bullets(diff.notes),))


def peaks_table(compared: Sequence[Comparison], before: str, after: str) -> Table:
    """Table of the likely and the highest reserved peaks of configurations, a row each.

    Args:
        before, after: titles of the columns of both sides.
    """
    columns = (
        left("configuration"),
        left("card"),
        left("PyTorch"),
        right(f"likely\n{before}"),
        right(f"likely\n{after}"),
        right("difference"),
        right(f"up to\n{after}"),
        left(""),
    )
    return table(columns, (_peaks(each) for each in compared), fit="listed")


def _peaks(each: Comparison) -> tuple[str | Cell, ...]:
    return (
        each.name,
        "–" if each.gpu == ANY_CARD else each.gpu,
        each.torch,
        "–" if each.before is None else _size(each.before.likely_bytes),
        _size(each.after.likely_bytes),
        "–" if each.before is None else difference(each.before.likely_bytes, each.after.likely_bytes),
        _size(each.after.high_bytes),
        Cell(each.change.value, _MARKS[each.change]),
    )


def _size(num_bytes: int) -> Cell:
    return Cell(format_bytes(num_bytes), detail=f"{num_bytes:,} bytes")


def difference(before_bytes: int, after_bytes: int) -> str:
    """Text of a difference with its sign and share: `+64.00 MiB (+12.5%)`; a dash where there is none."""
    by = after_bytes - before_bytes
    if by == 0:
        return "–"
    share = f" ({100 * by / before_bytes:+.1f}%)" if before_bytes else ""
    return f"{signed(by)}{share}"


def signed(num_bytes: int) -> str:
    """Text of a size with its sign: `+64.00 MiB`; a dash for 0 bytes."""
    return f"{'+' if num_bytes > 0 else ''}{format_bytes(num_bytes)}" if num_bytes else "–"


def lines_section(each: Comparison, before: str, after: str, *, most: int | None = NUM_LINES) -> Section:
    """Section on the lines of a configuration that hold more or less at the peak, the largest growth first.

    Args:
        before, after: titles of the columns of both sides.
        most: most lines to list; None for all.
    """
    return Section(
        name=f"lines-{each.name}-{each.gpu}",
        title=f"{each.name}{'' if each.gpu == ANY_CARD else f' on {each.gpu}'}: what changed at the peak",
        blocks=tuple(_lines(each, before, after, most)),
    )


def _lines(each: Comparison, before: str, after: str, most: int | None) -> Iterator[Block]:
    shown = most_telling(each.lines, most)
    if shown:
        columns = (right("difference"), right(before), right(after), left("module"), left("line"), left(""))
        yield table(columns, map(_line, shown), fit="listed")
    elif each.difference_bytes:
        yield Paragraph(
            "no line holds more or less at the peak: it differs in what the allocator keeps unused"
        )
    else:
        yield Paragraph("no line holds more or less at the peak")
    if len(shown) < len(each.lines):
        yield Paragraph(
            f"… and {len(each.lines) - len(shown)} lines of smaller differences: --json lists them"
        )
    if each.before is not None and (said := _others(each.before, each.after)):
        yield Bullets(said)


def most_telling(lines: Sequence[LineChange], most: int | None) -> Sequence[LineChange]:
    """Lines of the largest differences, in their order: from the largest growth to the largest decrease."""
    if most is None or len(lines) <= most:
        return lines
    least = sorted((abs(line.difference_bytes) for line in lines), reverse=True)[most - 1]
    return [line for line in lines if abs(line.difference_bytes) >= least][:most]


def _line(line: LineChange) -> tuple[str | Cell, ...]:
    grew = line.difference_bytes > 0
    return (
        Cell(signed(line.difference_bytes), "bad" if grew else "good", f"{line.difference_bytes:+,} bytes"),
        _size(line.before_bytes),
        _size(line.after_bytes),
        Cell(line.module, "code") if line.module else "–",
        Cell(line.place, "code"),
        "" if line.file is None else Cell(line.code, "code"),
    )


def _others(before: Memory, after: Memory) -> tuple[str, ...]:
    """Clauses on what else differs: allocated peak, parameters, batch that fits, and time."""
    sizes = {
        "allocated peak": (before.allocated_bytes, after.allocated_bytes),
        "parameters": (before.parameters_bytes, after.parameters_bytes),
        "activations": (before.activations_bytes, after.activations_bytes),
    }
    said = [
        f"{name}: {format_bytes(old)} → {format_bytes(new)}, {difference(old, new)}"
        for name, (old, new) in sizes.items()
        if old != new
    ]
    batches = before.largest_batch, after.largest_batch
    if batches[0] != batches[1] and None not in batches:
        said.append(f"largest batch that fits: {batches[0]} → {batches[1]}")
    old_time, new_time = before.step_seconds, after.step_seconds
    if old_time is not None and new_time is not None and old_time != new_time:
        said.append(f"step: {seconds_in_words(old_time)} → {seconds_in_words(new_time)}")
    return tuple(said)
