"""View `code`: the tree of Python lines with the allocations and operator times that they cause."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.explain.profile import Phase, Profile
from autofit.explain.timing import TimedCall
from autofit.explain.views.filters import Filters
from autofit.explain.views.selection import Selection, select
from autofit.explain.views.tree import Path, TreeRow, tree_view
from autofit.explain.views.view import View
from autofit_workers.spec.trace import Allocation


def code_view(profile: Profile, filters: Filters) -> View[TreeRow]:
    """Tree view of a step's allocations and times by the Python lines that cause them, outermost first.

    A node is a line, `file:line:function`. An allocation in backward is at the line whose forward pass
    made it necessary. Lines of PyTorch and the standard library are left out unless the filters include
    them. Allocations that no line of the user's causes are at a node for the phase: `(model)`, `(optimizer)`.

    Raises:
        UsageError: there is no such step, or nothing matches the filters.
    """
    selection = select(profile, filters)
    lines = _Lines(selection, with_libraries=filters.with_libraries)
    paths = [(lines.of_allocation(number), number) for number in selection.numbers]
    return tree_view("code", selection, paths, lines.of_calls(), filters)


def is_library(line: str) -> bool:
    """Whether a stack line is in PyTorch or the standard library.

    Args:
        line: line such as `/home/me/train.py:12:main` or `torch/nn/modules/linear.py:125:forward`; only
            those of the user begin with `/`, `./` or `<`.
    """
    return not line.startswith(("/", "./", "<"))


class _Lines:
    """Finds the Python lines that cause an allocation or an operator, which are its path in the tree of code.

    Without such lines, the place is a node named after the phase, such as `(optimizer)`.

    Args:
        selection: allocations and operators of the view.
        with_libraries: whether lines of PyTorch and the standard library count.
    """

    def __init__(self, selection: Selection, *, with_libraries: bool) -> None:
        self._selection = selection
        self._trace = selection.profile.trace
        self._with_libraries = with_libraries

    def of_allocation(self, number: int) -> Path:
        lines = self._shown(self._trace.allocations[number])
        return lines or (f"({self._selection.birth(number).name})",)

    def of_calls(self) -> Iterator[tuple[Path, TimedCall]]:
        """Yields each timed operator with its Python lines.

        An operator that allocates nothing gets the lines of the operator before it in its module and phase,
        or else in its phase.
        """
        last: dict[tuple[Phase, str | None], Path] = {}
        for call in self._selection.calls:
            phase = self._selection.phase_of_call(call)
            keys = (phase, call.module), (phase, None)
            own = self._own(call)
            if own is not None:
                last.update(dict.fromkeys(keys, own))
            path = own or next((last[key] for key in keys if key in last), ())
            yield path or (f"({phase.name})",), call

    def _own(self, call: TimedCall) -> Path | None:
        """Python lines of the allocation that an operator makes; None if it makes none."""
        events = self._trace.events
        event = events[call.position] if call.position < len(events) else -1
        if event < 0:
            return None
        allocation = self._trace.allocations[event]
        is_own = (allocation.operator, allocation.module) == (call.operator, call.module)
        return self._shown(allocation) if is_own else None

    def _shown(self, allocation: Allocation) -> Path:
        return tuple(line for line in allocation.stack if self._with_libraries or not is_library(line))
