"""Trees of sizes and times, whose nodes have sizes of their own and sums over their subtrees."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from autofit.explain.sizes import Sizes
from autofit.explain.timing import TimedCall
from autofit.explain.views.filters import Filters
from autofit.explain.views.selection import Selection
from autofit.explain.views.view import View

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRow:
    """Row of a tree view: one node, such as a module or a line of code.

    Attributes:
        name: name of the node.
        depth: number of its ancestors that are shown; 0 for the root.
        own: totals of the node's own allocations and operators.
        sizes: totals of the node with its subtree.
    """

    name: str
    depth: int
    own: Sizes
    sizes: Sizes


@dataclass(slots=True, eq=False)
class _Node:
    name: str
    own: Sizes = field(default_factory=Sizes)
    sizes: Sizes = field(default_factory=Sizes)
    children: dict[str, _Node] = field(default_factory=dict)


def tree_view(
    kind: str,
    selection: Selection,
    paths: Iterable[tuple[Path, int]],
    called: Iterable[tuple[Path, TimedCall]],
    filters: Filters,
) -> View[TreeRow]:
    """Tree view of allocations and operators; its root, named after the workload, is always shown.

    Args:
        kind: name of the view, `scopes` or `code`.
        selection: allocations and operators of the step.
        paths: place of each allocation in the tree: names of the nodes below the root down to its own, and
            the allocation's index.
        called: place of each timed operator, likewise, and the operator's call.
        filters: which nodes to show, and their order.

    Raises:
        NothingMatchesError: there are nodes below the root, but none passes the filters.
    """
    root = selection.profile.trace.workload
    tree = _tree(selection, paths, called, root)
    if filters.start:
        starts = _starts(tree, filters)
        if not starts:
            raise filters.nothing_matches()
        tree = _Node(
            root,
            Sizes(),
            sum((each.sizes for each in starts), Sizes()),
            {str(number): each for number, each in enumerate(starts)},
        )
    passing = _passing(tree, filters)
    shown = _largest(tree, passing, filters)
    if not shown and not (filters.passes(tree) and (filters.max_depth == 0 or not tree.children)):
        raise filters.nothing_matches()
    return View(
        kind=kind,
        selection=selection,
        total=selection.total,
        rows=(_row(tree, 0), *_rows(tree, 1, shown, filters)),
        num_passing=len(passing) + 1,
    )


def _tree(
    selection: Selection,
    paths: Iterable[tuple[Path, int]],
    called: Iterable[tuple[Path, TimedCall]],
    root: str,
) -> _Node:
    """Root of a tree with the allocations and operators at their nodes, and the sums of all subtrees."""
    groups: dict[Path, tuple[list[int], list[TimedCall]]] = {}
    for path, number in paths:
        groups.setdefault(path, ([], []))[0].append(number)
    for path, call in called:
        groups.setdefault(path, ([], []))[1].append(call)
    tree = _Node(root)
    for path, group in groups.items():
        sizes = selection.sizes(*group)
        node = tree
        node.sizes += sizes
        for name in path:
            node = node.children.setdefault(name, _Node(name))
            node.sizes += sizes
        node.own += sizes
    return tree


def _below(node: _Node) -> Iterator[tuple[_Node, int]]:
    """Yields all nodes below a node, each with its depth: 1 for children."""
    waiting = [(child, 1) for child in node.children.values()]
    while waiting:
        one, depth = waiting.pop()
        yield one, depth
        waiting += [(child, depth + 1) for child in one.children.values()]


def _starts(node: _Node, filters: Filters) -> list[_Node]:
    """Outermost nodes below a node that match `--start-name-regex`, which become the top of the tree."""
    found: list[_Node] = []
    for child in node.children.values():
        found += [child] if filters.starts_at(child) else _starts(child, filters)
    return found


def _passing(tree: _Node, filters: Filters) -> set[_Node]:
    """Nodes below the root that pass the filters on name, size and depth."""
    deepest = sys.maxsize if filters.max_depth is None else filters.max_depth
    return {node for node, depth in _below(tree) if depth <= deepest and filters.passes(node)}


def _largest(tree: _Node, passing: set[_Node], filters: Filters) -> set[_Node]:
    """Passing nodes that `--top` leaves: those with the largest own sizes, and passing nodes above them.

    Args:
        passing: nodes that pass the other filters.
    """
    if filters.top is None or len(passing) <= filters.top:
        return passing
    by_size = sorted(passing, key=lambda node: (-filters.measured(node.own), node.name))
    return _ancestors(tree, set(by_size[: filters.top])) & passing


def _ancestors(node: _Node, wanted: set[_Node]) -> set[_Node]:
    """Nodes on the paths from a node down to each wanted one in its subtree, both ends included.

    Empty if its subtree has no wanted nodes.
    """
    found = set[_Node]().union(*(_ancestors(child, wanted) for child in node.children.values()))
    return found | {node} if found or node in wanted else found


def _rows(node: _Node, depth: int, shown: set[_Node], filters: Filters) -> Iterator[TreeRow]:
    for child in filters.ordered(node.children.values()):
        if child in shown:
            yield _row(child, depth)
        yield from _rows(child, depth + (child in shown), shown, filters)


def _row(node: _Node, depth: int) -> TreeRow:
    return TreeRow(name=node.name, depth=depth, own=node.own, sizes=node.sizes)
