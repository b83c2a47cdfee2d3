"""What `autofit profile` can show and write: the one place to add a view or an export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from autofit.explain.code import code_view
from autofit.explain.filters import Filters
from autofit.explain.ops import operator_view
from autofit.explain.profile import Profile
from autofit.explain.scopes import scope_view
from autofit.explain.tensors import tensor_view


class Document(Protocol):
    """What a view's function returns."""

    def to_json(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewKind:
    """One value of `--view`.

    Attributes:
        help: what it shows, as a phrase.
        make: makes it.
        show: prints what `make` returned; it may import what is slow.
    """

    help: str
    make: Callable[[Profile, Filters], Document]
    show: Callable[[Any, Filters], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """One option that writes a file.

    Attributes:
        help: what it writes, as a phrase.
        make: makes the file's content; it may import what is slow.
    """

    help: str
    make: Callable[[Profile], bytes]


def _show_rows(view: Any, filters: Filters) -> None:
    from autofit.cli.profile_text import print_view

    print_view(view, filters)


VIEWS: dict[str, ViewKind] = {
    "ops": ViewKind(help="operators, forward and backward told apart", make=operator_view, show=_show_rows),
    "scopes": ViewKind(help="the tree of modules", make=scope_view, show=_show_rows),
    "code": ViewKind(help="the tree of the lines of code", make=code_view, show=_show_rows),
    "tensors": ViewKind(help="every allocation by itself", make=tensor_view, show=_show_rows),
}


def _page(profile: Profile) -> bytes:
    from autofit.report.html.page import render
    from autofit.reporting import report_on_profile

    return render(report_on_profile(profile)).encode()


# By the name of the option, without its dashes.
EXPORTS: dict[str, Export] = {
    "save": Export(help="the profile itself, for `--trace`", make=Profile.to_bytes),
    "report": Export(help="a page, one HTML file, with figures of it", make=_page),
}
