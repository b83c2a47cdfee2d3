"""The tree of code: which lines of Python led to what."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.explain.profile import Profile
from autofit.explain.views.filters import Filters
from autofit.explain.views.selection import Selection, select
from autofit.explain.views.tree import Path, TreeRow, tree_view
from autofit.explain.views.view import View


def code_view(profile: Profile, filters: Filters) -> View[TreeRow]:
    """A step's allocations by the lines that led to them, outermost first.

    A node is a line, `file:line:function`; what backward allocates is at the line whose forward pass
    made it necessary. PyTorch's lines and the standard library's are left out unless the filters have
    them. What no line of the user's led to is at a node for the phase: `(model)`, `(optimizer)`.

    Raises:
        UsageError: there is no such step, or nothing matches.
    """
    selection = select(profile, filters)
    paths = _paths(selection, with_libraries=filters.with_libraries)
    return tree_view("code", selection, paths, profile.trace.workload, filters)


def is_library(line: str) -> bool:
    """Whether a line of a stack is of PyTorch or the standard library (see `Allocation.stack`)."""
    return not line.startswith(("/", "./", "<"))


def _paths(selection: Selection, *, with_libraries: bool) -> Iterator[tuple[Path, int]]:
    for number in selection.numbers:
        stack = selection.profile.trace.allocations[number].stack
        lines = tuple(line for line in stack if with_libraries or not is_library(line))
        yield lines or (f"({selection.birth(number).name})",), number
