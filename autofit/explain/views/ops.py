"""View `ops`: bytes and time of each type of operator, separately for each phase."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autofit.explain.profile import Profile
from autofit.explain.sizes import Sizes
from autofit.explain.timing import TimedCall
from autofit.explain.views.filters import Filters
from autofit.explain.views.selection import select
from autofit.explain.views.view import View, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRow:
    """Row of the view `ops`: all calls of an operator in one phase of a step.

    Attributes:
        name: name of the operator, without PyTorch's prefix `aten.`.
        phase: phase of a step in which it runs: `forward`, `backward`, `optimizer`, …
        share: its requested bytes as a share of those of all rows, from 0 to 1.
        cumulative_share: share of this row and of all rows below it.
    """

    name: str
    phase: str
    sizes: Sizes
    cumulative_share: float = 1.0
    share: float = 1.0


def operator_view(profile: Profile, filters: Filters) -> View[OperatorRow]:
    """View of a step's allocations and times by operator and phase (forward, backward, …).

    Raises:
        UsageError: there is no such step, or nothing matches the filters.
    """
    selection = select(profile, filters)
    groups: dict[tuple[str, str], tuple[list[int], list[TimedCall]]] = {}
    for number in selection.numbers:
        key = _shown(profile.trace.allocations[number].operator), selection.birth(number).name
        groups.setdefault(key, ([], []))[0].append(number)
    for call in selection.calls:
        key = _shown(call.operator), selection.phase_of_call(call).name
        groups.setdefault(key, ([], []))[1].append(call)
    rows = [
        OperatorRow(name=name, phase=phase, sizes=selection.sizes(*group))
        for (name, phase), group in groups.items()
    ]
    return listed("ops", selection, list(_with_shares(filters.ordered(rows))), filters)


def _shown(operator: str) -> str:
    """Operator name without its `aten.` prefix."""
    return operator.removeprefix("aten.")


def _with_shares(rows: Sequence[OperatorRow]) -> Iterator[OperatorRow]:
    total = sum(row.sizes.requested_bytes for row in rows) or 1
    so_far = itertools.accumulate((row.sizes.requested_bytes for row in rows), initial=0)
    for row, before in zip(rows, so_far, strict=False):
        yield dataclasses.replace(
            row, cumulative_share=(total - before) / total, share=row.sizes.requested_bytes / total
        )
