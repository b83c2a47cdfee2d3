"""The module tree: what each module's allocations come to, in forward and in backward."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.explain.profile import Profile
from autofit.explain.views.filters import Filters
from autofit.explain.views.selection import Selection, select
from autofit.explain.views.tree import Path, TreeRow, tree_view
from autofit.explain.views.view import View


def scope_view(profile: Profile, filters: Filters) -> View[TreeRow]:
    """A step's allocations by the module that made them, or that owns them.

    In backward a module has what its forward pass made necessary; its parameters, their gradients and
    their optimizer's state are its own too. What belongs to none, as the batch does, is the root's.

    Raises:
        UsageError: there is no such step, or nothing matches.
    """
    selection = select(profile, filters)
    return tree_view("scopes", selection, _paths(selection), profile.trace.workload, filters)


def _paths(selection: Selection) -> Iterator[tuple[Path, int]]:
    """For each allocation the modules around it, each by its whole path."""
    known: dict[str, Path] = {"": ()}
    for number in selection.numbers:
        module = selection.profile.trace.allocations[number].module
        if module not in known:
            parts = module.split(".")
            known[module] = tuple(".".join(parts[:end]) for end in range(1, len(parts) + 1))
        yield known[module], number
