"""Gathers the HTML page of a memory diff."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.answers.locks.changes import diff_sections, difference
from autofit.identity import versions
from autofit.locks.diff import MemoryDiff
from autofit.locks.lock_file import ANY_CARD
from autofit.report.html.page import Fact, Page
from autofit.units import format_bytes


def report_on_diff(diff: MemoryDiff) -> Page:
    """HTML report of a memory diff with all its lines, as data that is still to be rendered."""
    _, *sections = diff_sections(diff, most=None)
    return Page(
        title=f"Memory of {diff.before.title} → {diff.after.title}",
        answer=tuple(_answer(diff)),
        facts=(
            Fact(name="before", value=diff.before.title, note=diff.before.kind.value),
            Fact(name="after", value=diff.after.title, note=diff.after.kind.value),
        ),
        sections=tuple(sections),
        made=", ".join(f"{name} {version}" for name, version in versions().items()),
    )


def _answer(diff: MemoryDiff) -> Iterator[str]:
    """Yields a sentence on the peak of each configuration, and on the line that grew most."""
    for each in diff.configurations:
        assert each.before is not None
        old, new = each.before.likely_bytes, each.after.likely_bytes
        card = "" if each.gpu == ANY_CARD else f" on {each.gpu}"
        by = f"changes by {difference(old, new)} to" if old != new else "stays at"
        grown = f"; {each.grown_lines[0].place} grew most" if each.grown_lines and new > old else ""
        yield f"{each.name}{card}: the likely peak {by} {format_bytes(new)}{grown}."
