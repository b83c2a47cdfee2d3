"""View of a profile: rows of plain data about one step; its document is `autofit.profile-view/1`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from autofit.errors import UsageError
from autofit.explain.profile import Profile, timed_step
from autofit.explain.sizes import Sized, Sizes
from autofit.explain.timing import Timing
from autofit.explain.views.filters import Filters
from autofit.explain.views.selection import Selection
from autofit.notebooks.shown import ShownInNotebooks
from autofit_workers.spec.pythons import Self

VIEW_SCHEMA = "autofit.profile-view/1"
TIMED_KINDS = ("ops", "scopes", "code")  # kinds of views whose rows have times

_Row = TypeVar("_Row", bound=Sized)


@dataclass(frozen=True, slots=True, kw_only=True)
class View(ShownInNotebooks, Generic[_Row]):
    """View of one step of a profile: its rows and their total.

    Attributes:
        kind: `ops`, `scopes`, `code` or `tensors`.
        selection: allocations and operators that the view is about.
        total: totals of everything in the view, whether its rows are shown or not.
        rows: rows to show, in their order; in a tree each node before its subtree.
        num_passing: number of rows that pass all filters but `top`, which limits how many are shown.
    """

    kind: str
    selection: Selection
    total: Sizes
    rows: tuple[_Row, ...]
    num_passing: int

    def top(self, num_rows: int) -> Self:
        """View with its first rows alone; the others count as hidden."""
        return dataclasses.replace(self, rows=self.rows[:num_rows])

    def to_dict(self) -> dict[str, Any]:
        """View as a dict that JSON can hold, the content of its JSON document."""
        selection = self.selection
        return {
            **heading(self.kind, selection.profile),
            "step": selection.step,
            "step_peak_allocated_bytes": selection.peak_allocated_bytes,
            "times": plain_times(selection.profile, selection.timing, selection.time_note),
            "total": self._sizes(self.total),
            "num_passing": self.num_passing,
            "rows": [self._plain(row) for row in self.rows],
        }

    def _plain(self, row: _Row) -> dict[str, Any]:
        """Row as a dict that JSON can hold; the totals of the row are fields of the dict too."""
        assert dataclasses.is_dataclass(row)
        assert not isinstance(row, type)
        plain = {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}
        whole = {name: self._sizes(value) for name, value in plain.items() if isinstance(value, Sizes)}
        return {**plain, **whole, **whole["sizes"]}

    def _sizes(self, sizes: Sizes) -> dict[str, Any]:
        """Totals as a dict that JSON can hold, with share of the step's time and seconds in views with times.

        Both are None if they are not predicted.
        """
        timing = self.selection.timing
        plain = dataclasses.asdict(sizes)
        if self.kind not in TIMED_KINDS:
            del plain["step_share"]
            return plain
        share = plain.pop("step_share")
        return {
            **plain,
            "step_share": None if timing is None else share,
            "seconds": None if timing is None else timing.seconds_of(share),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def heading(kind: str, profile: Profile) -> dict[str, Any]:
    """First fields of the JSON document of a view: schema, view, configuration, card and peaks.

    Args:
        kind: name of the view.
    """
    return {
        "schema": VIEW_SCHEMA,
        "view": kind,
        "workload": profile.trace.workload,
        "batch_size": profile.trace.batch_size,
        "mode": profile.trace.mode,
        "knobs": profile.knobs.to_dict(),
        "card": profile.card,
        "architecture": profile.architecture,
        "devices": profile.devices,
        "peak_allocated_bytes": profile.peak_allocated_bytes,
        "peak_reserved_bytes": profile.peak_reserved_bytes,
        "context_bytes": profile.context_bytes,
        "versions": profile.versions,
    }


def plain_times(profile: Profile, timing: Timing | None, note: str) -> dict[str, Any]:
    """Fields on times in a view's JSON document: timed step, its seconds, the device's idle share, a note.

    Args:
        timing: predicted times; None if the view has none.
        note: sentence on the basis of the times, or on why there are no times or no seconds.
    """
    seconds = None if timing is None else timing.seconds
    return {
        "step": None if timing is None else timed_step(profile),
        "step_seconds": None if seconds is None else dataclasses.asdict(seconds),
        "waiting_share": None if timing is None else timing.waiting_share,
        "note": note,
    }


def listed(kind: str, selection: Selection, rows: Sequence[_Row], filters: Filters) -> View[_Row]:
    """View whose rows are a list, as opposed to a tree; rows that do not pass the filters are left out.

    Args:
        kind: name of the view, `ops` or `tensors`.
        selection: allocations and operators of the step.
        rows: all rows, in their order.
        filters: which rows to show.

    Raises:
        UsageError: a filter is set that is only for trees.
        NothingMatchesError: no row passes the filters.
    """
    if filters.start or filters.max_depth is not None:
        raise UsageError(
            f"--start-name-regex and --max-depth apply to trees, and --view {kind} is a list: leave them out "
            "or choose another view"
        )
    passing = [row for row in rows if filters.passes(row)]
    if not passing:
        raise filters.nothing_matches()
    return View(
        kind=kind,
        selection=selection,
        total=selection.total,
        rows=tuple(passing[: filters.top]),
        num_passing=len(passing),
    )
