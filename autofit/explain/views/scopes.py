"""View `scopes`: the tree of modules with their allocations and times, forward and backward."""

from __future__ import annotations

import functools

from autofit.explain.profile import Profile
from autofit.explain.views.filters import Filters
from autofit.explain.views.selection import select
from autofit.explain.views.tree import Path, TreeRow, tree_view
from autofit.explain.views.view import View


def scope_view(profile: Profile, filters: Filters) -> View[TreeRow]:
    """Tree view of a step's allocations and times by the modules that made or own them.

    An allocation in backward belongs to the module whose forward pass made it necessary. Parameters, their
    gradients and optimizer states belong to their module. The rest, such as the batch, belongs to the root.

    Raises:
        UsageError: there is no such step, or nothing matches the filters.
    """
    selection = select(profile, filters)
    trace = profile.trace
    paths = [(_path(trace.allocations[number].module), number) for number in selection.numbers]
    called = [(_path(call.module), call) for call in selection.calls]
    return tree_view("scopes", selection, paths, called, filters)


@functools.lru_cache(maxsize=1 << 14)
def _path(module: str) -> Path:
    """Paths of a module's parents, outermost first, then its own path; none for an empty path."""
    parts = module.split(".") if module else []
    return tuple(".".join(parts[:end]) for end in range(1, len(parts) + 1))
