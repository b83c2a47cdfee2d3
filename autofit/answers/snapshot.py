"""Lays out what a memory snapshot shows: peak, differences, growth, unused memory, and what would save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autofit.answers.section import Bullets, Paragraph, Section, Table, grid, left, right, table
from autofit.answers.words.numbers import exact, share
from autofit.explain.snapshots.findings import Growth, LineBytes, Unused
from autofit.explain.snapshots.matching import Difference
from autofit.questions.real_runs.snapshot import Compared, ObservedSnapshot
from autofit.units import format_bytes

_NUM_LINES = 8
_NUM_MOMENTS = 8
_NUM_NAMES = 6


def snapshot_sections(answer: ObservedSnapshot) -> Iterator[Section]:
    """Yields all sections of `autofit observe --snapshot`."""
    yield _peak(answer)
    if answer.compared is not None:
        yield from _compared(answer, answer.compared)
    yield _at_peak(answer)
    yield _grown(answer.growth)
    yield _copies(answer.copies)
    yield _unused(answer.unused, answer.peak_reserved_bytes)
    yield from _savings(answer)
    yield from _told(answer)


def explanation_sections(answer: ObservedSnapshot) -> Iterator[Section]:
    """Yields the sections of `autofit explain`: why the run took what it took, and what would save most."""
    yield _peak(answer)
    yield _at_peak(answer)
    if answer.growth is not None and answer.growth.is_leak:
        yield _grown(answer.growth)
    yield from _savings(answer)
    yield from _told(answer)


def _peak(answer: ObservedSnapshot) -> Section:
    at_least = "" if answer.knows_reserved else "at least "
    rows = [
        ("allocated", format_bytes(answer.peak_allocated_bytes), exact(answer.peak_allocated_bytes)),
        (
            "reserved",
            f"{at_least}{format_bytes(answer.peak_reserved_bytes)}",
            exact(answer.peak_reserved_bytes),
        ),
    ]
    steps = f"{answer.num_steps} whole steps" if answer.num_steps else "steps not told apart"
    said = (
        f"{answer.name}: peak in the {answer.peak_phase}; {answer.num_allocations:,} allocations recorded, "
        f"{answer.num_before:,} blocks from before, {steps}"
    )
    about = [] if answer.is_exact else ["blocks are rounded requests: not every block could be followed"]
    if not answer.knows_reserved:
        about.append("the segments are not known, so more may have been reserved than is said here")
    blocks = (Paragraph(said, "strong", (answer.name,)), grid("<>>", rows))
    return Section(name="peak", blocks=(*blocks, *((Bullets(tuple(about)),) if about else ())))


def _lines(rows: Sequence[LineBytes], title: str = "line") -> Table:
    has_operators = any(row.operator for row in rows)
    return table(
        (left(title), *((left("operators"),) if has_operators else ()), right("bytes"), right("count")),
        (
            (
                row.line,
                *((row.operator,) if has_operators else ()),
                format_bytes(row.num_bytes),
                f"{row.count:,}",
            )
            for row in rows[:_NUM_LINES]
        ),
        fit="listed",
    )


def _at_peak(answer: ObservedSnapshot) -> Section:
    return Section(name="lines", title="Alive at the allocated peak", blocks=(_lines(answer.lines),))


def _grown(growth: Growth | None) -> Section:
    title = "Kept longer than a step"
    if growth is None:
        return Section(name="growth", title=title, blocks=(Paragraph("nothing grew"),))
    if growth.is_leak:
        said = (
            f"leak: {format_bytes(growth.bytes_a_step)} more with every step, over {growth.num_steps} "
            f"{'step' if growth.num_steps == 1 else 'steps'}; allocated in one step by"
        )
    else:
        said = (
            f"{format_bytes(growth.bytes_a_step)} are there at the end of the record that were not at its "
            "begin; gradients and a first step's optimizer state are among them. Record three steps or more "
            "to see what leaks. Allocated by"
        )
    return Section(name="growth", title=title, blocks=(Paragraph(said), _lines(growth.lines)))


def _copies(copies: Sequence[LineBytes]) -> Section:
    if not copies:
        blocks: tuple[Paragraph | Table, ...] = (Paragraph("none"),)
    else:
        said = "blocks of twice the bytes of one made just before, as a copy in 32 bits of 16-bit values is"
        blocks = (Paragraph(said), _lines(copies))
    return Section(name="copies", title="What looks like copies in 32 bits", blocks=blocks)


def _unused(unused: Unused, reserved_bytes: int) -> Section:
    most = format_bytes(unused.most_bytes)
    said = [
        f"{format_bytes(unused.at_peak_bytes)} ({share(unused.at_peak_bytes, reserved_bytes)}) of the "
        f"reserved memory had no tensor at the reserved peak, at most {most} at any moment"
    ]
    if unused.largest_free_bytes is not None:
        said.append(f"the largest free piece at that moment had {format_bytes(unused.largest_free_bytes)}")
    if unused.num_made_beside_free:
        made = format_bytes(unused.made_beside_free_bytes)
        said.append(
            f"{unused.num_made_beside_free:,} segments ({made}) were made although as much was free in "
            "smaller pieces"
        )
    blocks: list[Bullets | Table] = [Bullets(tuple(said)), _over_time(unused)]
    if unused.lines:
        blocks.append(_lines(unused.lines, "segments made for"))
    if unused.pinned:
        blocks.append(_lines(unused.pinned, "free memory held by blocks of"))
    return Section(name="unused", title="Reserved and not allocated", blocks=tuple(blocks))


def _over_time(unused: Unused) -> Table:
    size = max(1, -(-len(unused.moments) // _NUM_MOMENTS))
    moments = [
        max(unused.moments[start : start + size], key=lambda each: each.reserved_bytes - each.allocated_bytes)
        for start in range(0, len(unused.moments), size)
    ]
    return table(
        (right("events"), right("allocated"), right("reserved"), right("unused")),
        (
            (
                f"{each.position:,}",
                format_bytes(each.allocated_bytes),
                format_bytes(each.reserved_bytes),
                format_bytes(each.reserved_bytes - each.allocated_bytes),
            )
            for each in moments
        ),
        fit="listed",
    )


def _savings(answer: ObservedSnapshot) -> Iterator[Section]:
    if answer.savings:
        rows = [(each.name, f"up to {format_bytes(each.num_bytes)}", each.how) for each in answer.savings]
        yield Section(
            name="savings",
            title="What would save most at the peak",
            blocks=(grid("<><", rows, fit="listed"),),
        )


def _told(answer: ObservedSnapshot) -> Iterator[Section]:
    """Yields what the snapshot's other fields say."""
    said = [
        f"a request of {format_bytes(each.num_bytes)} failed{f' at {each.line}' if each.line else ''}: "
        f"{format_bytes(each.device_free_bytes)} were free on the device, "
        f"{format_bytes(each.reserved_bytes)} reserved by this process, {format_bytes(each.unused_bytes)} of "
        "them unused; the rest of the card is the context's and other processes'"
        for each in answer.failures[:_NUM_NAMES]
    ]
    kept = [f"{name}={value}" for name, value in sorted(answer.settings.items()) if _is_set(name, value)]
    if kept:
        said.append(f"allocator: {', '.join(kept)}")
    if answer.annotations:
        names = [f"{name} ({count})" for name, count in list(answer.annotations.items())[:_NUM_NAMES]]
        said.append(f"named parts: {', '.join(names)}")
    if answer.private_bytes:
        said.append(f"{format_bytes(answer.private_bytes)} are in pools of their own, as CUDA graphs' are")
    if len(answer.streams) > 1:
        of = ", ".join(f"{format_bytes(size)} of stream {name}" for name, size in answer.streams.items())
        said.append(f"reserved at the end: {of}")
    for number, size in answer.other_devices.items():
        said.append(f"the same process reserved {format_bytes(size)} on device {number}")
    if said:
        yield Section(name="told", title="What else the snapshot says", blocks=(Bullets(tuple(said)),))


def _is_set(name: str, value: str) -> bool:
    """Whether a setting of the allocator says anything: expandable segments, and what is not the default."""
    is_large = value.lstrip("-").isdigit() and not 0 < int(value) < 1 << 62
    return name == "expandable_segments" or not (
        is_large or value in ("", "0.0", "False") or name.startswith("pinned")
    )


# ── beside a prediction ─────────────────────────────────────────────────────────────────────────


def _compared(answer: ObservedSnapshot, compared: Compared) -> Iterator[Section]:
    rows = [
        (
            name,
            f"{format_bytes(real)} observed",
            f"{format_bytes(predicted)} predicted",
            f"{_signed(real - predicted)} ({100 * (real / predicted - 1):+.1f}%)" if predicted else "",
        )
        for name, real, predicted in (
            ("allocated", answer.peak_allocated_bytes, compared.peak_allocated_bytes),
            ("reserved", answer.peak_reserved_bytes, compared.peak_reserved_bytes),
        )
    ]
    matched = compared.matched
    said = [
        f"{matched.num_matched:,} of {matched.num_real:,} recorded allocations of the step are the predicted "
        f"ones ({matched.num_predicted:,})",
        f"before the step {_signed(matched.before_bytes)} is held"
        + (" than predicted" if matched.before_bytes else " as predicted"),
        compared.note,
    ]
    yield Section(
        name="difference",
        title=f"Beside {compared.workload} at batch {compared.batch_size}",
        blocks=(grid("<>>>", rows), Bullets(tuple(said))),
    )
    differences = matched.differences
    if differences:
        lines = tuple(map(difference_in_words, differences[: 2 * _NUM_LINES]))
        more = len(differences) - len(lines)
        rest = (f"… and {more:,} more, in --json the first 20",) if more > 0 else ()
        yield Section(
            name="differences",
            title="Operator by operator, line by line",
            blocks=(Bullets((*lines, *rest)),),
        )


def difference_in_words(difference: Difference) -> str:
    """Text of a difference, such as `aten.mm at attn.py:54:forward: 16 MiB more, workspace`."""
    each = difference
    where = f"{each.operator} at {each.line}" if each.operator else each.line
    counts = (
        f"{each.real_count}" if not each.predicted_count else f"{each.real_count} for {each.predicted_count}"
    )
    at_peak = f", {_signed(each.peak_bytes)} at the peak" if each.peak_bytes else ""
    return f"{where}: {_signed(each.extra_bytes)}, {each.why} ({counts}{at_peak})"


def _signed(num_bytes: int) -> str:
    if not num_bytes:
        return "as much"
    return f"{format_bytes(abs(num_bytes))} {'more' if num_bytes > 0 else 'less'}"
