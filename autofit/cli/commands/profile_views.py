"""Tables of the views and exports of `autofit profile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autofit.explain.exports.chrome_trace import chrome_trace, encode_chrome_trace
from autofit.explain.exports.snapshot import encode_snapshot, snapshot, step_peak
from autofit.explain.views.code import code_view
from autofit.explain.views.ops import operator_view
from autofit.explain.views.plan import plan_view
from autofit.explain.views.scopes import scope_view
from autofit.explain.views.selection import devices_of, phases_of
from autofit.explain.views.tensors import tensor_view
from autofit.explain.views.timeline import timeline_view
from autofit.paths import require_writable

if TYPE_CHECKING:
    from autofit.explain.profile import Profile
    from autofit.explain.views.filters import Filters


class Document(Protocol):
    """Protocol of a view of a profile, which can be written as JSON."""

    def to_json(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewKind:
    """Kind of view that `autofit profile --view` offers: its help, and functions that make and print it.

    Attributes:
        help: what the view shows, as a phrase for the command's help.
        make: function that makes the view.
        show: function that prints the view that `make` returned; it may import slow modules.
    """

    help: str
    make: Callable[[Profile, Filters], Document]
    show: Callable[[Any, Filters], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """File that an option of `autofit profile` writes: its help, and the function that makes the content.

    Attributes:
        help: what the file holds, as a phrase for the command's help.
        make: function that makes the content of the file, given its path; it may import slow modules.
        require: check, before any work, that the file can be written.
    """

    help: str
    make: Callable[[Profile, Filters, Path], bytes]
    require: Callable[[Path], None] = require_writable


def _show_rows(view: Any, filters: Filters) -> None:
    from autofit.answers.profile.rows import view_sections
    from autofit.cli.text.sections import print_sections

    print_sections(view_sections(view, filters))


def _show_timeline(view: Any, filters: Filters) -> None:
    from autofit.answers.profile.timeline import timeline_sections
    from autofit.cli.text.chart import num_columns
    from autofit.cli.text.sections import print_sections

    print_sections(timeline_sections(view, filters.top, num_moments=num_columns()))


def _show_plan(view: Any, filters: Filters) -> None:  # noqa: ARG001 (all views are shown alike)
    from autofit.answers.profile.plan import plan_sections
    from autofit.cli.text.sections import print_sections

    print_sections(plan_sections(view))


def _saved(profile: Profile, _filters: Filters, _path: Path) -> bytes:
    return profile.to_bytes()


def _chrome_trace(profile: Profile, filters: Filters, path: Path) -> bytes:
    devices_of(profile, filters)
    document = chrome_trace(profile, step=filters.step, categories=filters.categories)
    return encode_chrome_trace(document, path)


def _snapshot(profile: Profile, filters: Filters, _path: Path) -> bytes:
    devices_of(profile, filters)
    return encode_snapshot(snapshot(profile, position=phases_of(profile, filters.step)[-1].stop))


def _peak_snapshot(profile: Profile, filters: Filters, _path: Path) -> bytes:
    devices_of(profile, filters)
    return encode_snapshot(snapshot(profile, position=step_peak(profile, filters.step)))


def _require_page(path: Path) -> None:
    from autofit.cli.commands.report_file import require_report

    require_report(path)


def _page(profile: Profile, _filters: Filters, _path: Path) -> bytes:
    from autofit.report.gather import report_on_profile
    from autofit.report.html.page import render

    return render(report_on_profile(profile)).encode()


VIEWS: dict[str, ViewKind] = {
    "ops": ViewKind(help="operators, forward and backward apart", make=operator_view, show=_show_rows),
    "scopes": ViewKind(help="the tree of modules", make=scope_view, show=_show_rows),
    "code": ViewKind(help="the tree of your lines", make=code_view, show=_show_rows),
    "tensors": ViewKind(help="every allocation by itself", make=tensor_view, show=_show_rows),
    "timeline": ViewKind(
        help="memory over all steps, unless --step names one or it is by seconds",
        make=timeline_view,
        show=_show_timeline,
    ),
    "plan": ViewKind(
        help="what the last step would need if its graph were known in advance",
        make=plan_view,
        show=_show_plan,
    ),
}

# By the name of the option, without its dashes.
EXPORTS: dict[str, Export] = {
    "save": Export(help="the profile itself, for `--trace`", make=_saved),
    "chrome-trace": Export(
        help="host, kernels and memory for Perfetto and chrome://tracing, gzipped if it ends in .gz",
        make=_chrome_trace,
    ),
    "snapshot": Export(
        help="a memory snapshot for torch.cuda._memory_viz and pytorch.org/memory_viz, taken at the end "
        "(of --step)",
        make=_snapshot,
    ),
    "peak-snapshot": Export(help="the same snapshot, taken when the most is allocated", make=_peak_snapshot),
    "report": Export(help="one HTML page with figures", make=_page, require=_require_page),
}
