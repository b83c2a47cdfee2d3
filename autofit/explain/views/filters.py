"""Filters for the rows of a profile's views, with the options of TensorFlow's profiler.

A filter decides what is shown, not what is counted: the sums of a tree's node and the shares of a
row do not change. Two filters, step and category, choose what a view is computed from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from autofit.errors import UsageError, did_you_mean
from autofit.explain.sizes import Sized, Sizes
from autofit.units import parse_bytes
from autofit_workers.spec.trace import Category

SECONDS = "seconds"
ORDERS = ("bytes", "peak-bytes", "count", SECONDS, "name")
SELECTABLE = ("bytes", "peak-bytes", "count", SECONDS)
CATEGORIES = tuple(category.value.replace("_", "-") for category in Category)


_OPTIONS = {
    "select": "--select",
    "order_by": "--order-by",
    "min_bytes": "--min-bytes",
    "max_depth": "--max-depth",
    "start": "--start-name-regex",
    "show": "--show-name-regex",
    "hide": "--hide-name-regex",
    "categories": "--category",
    "step": "--step",
    "device": "--device",
    "top": "--top",
    "with_libraries": "--libraries",
}


class NothingMatchesError(UsageError):
    """No row of a profile's view is left after the user's filters."""

    kind = "nothing-matches"


_Sized = TypeVar("_Sized", bound=Sized)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Filters, order and columns of one view of a profile, as the options of `autofit profile` set them.

    Attributes:
        select: columns to show, from `SELECTABLE`.
        order_by: column to sort by, one of `ORDERS`; names ascend, all others descend.
        min_bytes: least requested bytes of a row, or of a tree's node with its subtree.
        max_depth: greatest depth of a tree's nodes below its root; None for no limit.
        start: name patterns; a tree begins at the outermost nodes that match one of them.
        show: name patterns; rows and nodes have to match one of them.
        hide: name patterns; rows and nodes must match none. Nodes below hidden ones are shown.
        categories: memory categories of the allocations that a view is computed from; empty for all.
        step: number of the step, 0 for building the model; None for the step with the peak.
        device: pattern that a device's name has to match; None for all devices.
        top: number of rows, or of nodes with the largest own sizes, to show; None for all.
        with_libraries: whether the tree of code includes lines of PyTorch and the standard library.
    """

    select: tuple[str, ...] = SELECTABLE
    order_by: str = "bytes"
    min_bytes: int = 0
    max_depth: int | None = None
    start: tuple[re.Pattern[str], ...] = ()
    show: tuple[re.Pattern[str], ...] = ()
    hide: tuple[re.Pattern[str], ...] = ()
    categories: frozenset[Category] = frozenset()
    step: int | None = None
    device: re.Pattern[str] | None = None
    top: int | None = None
    with_libraries: bool = False

    def passes(self, item: Sized) -> bool:
        """Whether a row or tree node passes the filters on name and requested bytes."""
        return (
            item.sizes.requested_bytes >= self.min_bytes
            and (not self.show or _found(self.show, item.name))
            and not _found(self.hide, item.name)
        )

    def starts_at(self, item: Sized) -> bool:
        """Whether the tree starts at a node, as its name matches a pattern of `--start-name-regex`."""
        return _found(self.start, item.name)

    def ordered(self, items: Iterable[_Sized]) -> list[_Sized]:
        """Rows or tree nodes sorted as `--order-by` says; equal ones by name."""
        by_name = sorted(items, key=lambda item: item.name)
        if self.order_by == "name":
            return by_name
        return sorted(by_name, key=lambda item: self.measured(item.sizes), reverse=True)

    def measured(self, sizes: Sizes) -> float:
        """Number by which rows are sorted under `--order-by`, from a row's totals.

        With `--order-by name`, it is the requested bytes, by which `--top` chooses tree nodes.
        """
        attributes = {"peak-bytes": "peak_bytes", "count": "count", SECONDS: "step_share"}
        measured: float = getattr(sizes, attributes.get(self.order_by, "requested_bytes"))
        return measured

    @property
    def asking_for_seconds(self) -> str:
        """Typed option that needs predicted times, such as `--order-by seconds`; empty if there is none."""
        if self.order_by == SECONDS:
            return f"--order-by {SECONDS}"
        return f"--select {SECONDS}" if SECONDS in self.select and self.select != SELECTABLE else ""

    def require_no_seconds(self, view: str) -> None:
        """Checks that no option needs predicted times, for a view that has none.

        Args:
            view: name of the view.

        Raises:
            UsageError: an option needs times.
        """
        if asking := self.asking_for_seconds:
            raise UsageError(f"{asking}: --view {view} has no times; choose ops, scopes, code or timeline")

    def require_only(self, used: Collection[str], view: str) -> None:
        """Checks that no filter is set which a view does not use.

        Args:
            used: names of the filters (fields of this class) that the view uses.
            view: name of the view.

        Raises:
            UsageError: another filter is set.
        """
        usual = Filters()
        ignored = [
            option
            for field, option in _OPTIONS.items()
            if field not in used and getattr(self, field) != getattr(usual, field)
        ]
        if ignored:
            named = " and ".join(ignored)
            raise UsageError(
                f"--view {view} does not take {named}: leave {named} out, or choose another view"
            )

    def nothing_matches(self) -> NothingMatchesError:
        """Error for a view without rows, to be raised by the caller; it names the filters that were set."""
        patterns = (("start", self.start), ("show", self.show), ("hide", self.hide))
        given = [f"--{name}-name-regex {each.pattern!r}" for name, all_ in patterns for each in all_]
        given += [f"--category {category.value}" for category in sorted(self.categories)]
        if self.min_bytes:
            given.append(f"--min-bytes {self.min_bytes}")
        if self.max_depth is not None:
            given.append(f"--max-depth {self.max_depth}")
        if self.step is not None:
            given.append(f"--step {self.step}")
        return NothingMatchesError(
            f"nothing matches {' and '.join(given) or 'the filters'}: drop or loosen a filter"
        )


def parse_filters(
    *,
    select: str | None = None,
    order_by: str | None = None,
    min_bytes: str | None = None,
    max_depth: int | None = None,
    start_name_regex: Sequence[str] = (),
    show_name_regex: Sequence[str] = (),
    hide_name_regex: Sequence[str] = (),
    category: str | None = None,
    step: int | None = None,
    device: str | None = None,
    top: int | None = None,
    libraries: bool = False,
) -> Filters:
    """Filters made from the values of the options of `autofit profile`; options that are None have defaults.

    Raises:
        UsageError: an option has an invalid value; the message names it.
    """
    return Filters(
        select=_listed("--select", select, SELECTABLE) or SELECTABLE,
        order_by="bytes" if order_by is None else _one("--order-by", order_by, ORDERS),
        min_bytes=0 if min_bytes in (None, "0") else _converted("--min-bytes", parse_bytes, min_bytes),
        max_depth=max_depth,
        start=_patterns("--start-name-regex", start_name_regex),
        show=_patterns("--show-name-regex", show_name_regex),
        hide=_patterns("--hide-name-regex", hide_name_regex),
        categories=frozenset(
            Category(name.replace("-", "_")) for name in _listed("--category", category, CATEGORIES)
        ),
        step=step,
        device=None if device is None else _patterns("--device", [device])[0],
        top=top,
        with_libraries=libraries,
    )


def _found(patterns: Iterable[re.Pattern[str]], name: str) -> bool:
    return any(pattern.search(name) for pattern in patterns)


def _listed(option: str, text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    names = () if text is None else tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in known:
            raise UsageError(
                f"{option}: unknown name {name!r}; choose from {', '.join(known)}.{did_you_mean(name, known)}"
            )
    return names


def _one(option: str, text: str, known: Sequence[str]) -> str:
    name, *others = _listed(option, text, known)
    if others:
        raise UsageError(f"{option} takes one column, got {text!r}; choose one of {', '.join(known)}")
    return name


def _patterns(option: str, texts: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(_converted(option, re.compile, text) for text in texts)


def _converted(option: str, convert: Callable[[Any], Any], text: object) -> Any:
    try:
        return convert(text)
    except re.error as error:
        raise UsageError(f"{option}: {text!r} is not a valid regular expression: {error}") from error
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error
