"""Operation folding (fusion): merges an element-wise kernel into the only kernel that reads its result.

The merged kernel's result is then never stored. A kernel is folded if

- it is element-wise and writes one allocation, and so does the next kernel that touches that allocation;
- both results have as many elements, so that each element of one belongs to one of the other;
- only element-wise kernels run between the two, so that a chain keeps its place in the step;
- no other kernel reads its result: the next one overwrites it, or is the last that touches it;
- its inputs are not changed before the folded kernel runs.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from autofit.explain.views.step_graph import Kernel, StepGraph, Value


def fold_chains(graph: StepGraph) -> StepGraph:
    """Graph with each chain of element-wise kernels fused into one kernel, at the chain's last."""
    roots = chain_ends(graph)
    groups: dict[int, list[Kernel]] = {}
    for kernel, root in zip(graph.kernels, roots, strict=True):
        groups.setdefault(root, []).append(kernel)
    kernels = [_folded(group) for _, group in sorted(groups.items())]
    values = dict(graph.values)
    for kernel, (_, group) in zip(kernels, sorted(groups.items()), strict=True):
        _move(values, kernel, group)
    return dataclasses.replace(
        graph, kernels=tuple(kernels), values=values, views=_recounted(graph.views, sorted(groups))
    )


def chain_ends(graph: StepGraph) -> list[int]:
    """Index of the kernel that each kernel is fused into; its own index if it is not fused."""
    return _Folder(graph).roots()


class _Folder:
    """Finds the kernel into which each kernel is fused."""

    def __init__(self, graph: StepGraph) -> None:
        self._graph = graph
        self._touches: dict[int, list[int]] = {}  # indices of kernels in order, by allocation
        self._writes: dict[int, list[int]] = {}
        for index, kernel in enumerate(graph.kernels):
            for number in kernel.touches:
                self._touches.setdefault(number, []).append(index)
            for number in kernel.writes:
                self._writes.setdefault(number, []).append(index)
        others = (not kernel.is_elementwise for kernel in graph.kernels)
        self._runs = list(itertools.accumulate(others))  # equal within a run of element-wise kernels

    def roots(self) -> list[int]:
        roots = list(range(len(self._graph.kernels)))
        # From the last kernel to the first, so that it is known what a kernel's consumer is fused into.
        for index in reversed(range(len(roots))):
            consumer = self._consumer(index)
            if consumer is not None and self._inputs_last(index, roots[consumer], roots):
                roots[index] = roots[consumer]
        return roots

    def _consumer(self, index: int) -> int | None:
        """Index of the only kernel that uses a kernel's result, if both can be fused; else None."""
        graph, kernel = self._graph, self._graph.kernels[index]
        if not kernel.is_elementwise or len(kernel.writes) != 1:
            return None
        number = kernel.writes[0]
        touches = self._touches[number]
        place = bisect_right(touches, index)
        if place == len(touches):
            return None
        consumer = touches[place]
        other = graph.kernels[consumer]
        if (
            not other.is_elementwise
            or self._runs[consumer] != self._runs[index]
            or len(other.writes) != 1
            or not kernel.num_elements
            or other.num_elements != kernel.num_elements
        ):
            return None
        is_overwritten = number in other.writes
        views = graph.views.get(number, [])
        next_view = bisect_right(views, index)
        if next_view < len(views) and (views[next_view] <= consumer or not is_overwritten):
            return None
        return consumer if is_overwritten or self._ends_at(number, consumer) else None

    def _ends_at(self, number: int, index: int) -> bool:
        """Whether kernel `index` is the last that touches a value, which may be freed then."""
        value = self._graph.values.get(number)
        is_last = self._touches[number][-1] == index
        return is_last and value is not None and not value.is_kept and not value.escapes

    def _inputs_last(self, index: int, root: int, roots: Sequence[int]) -> bool:
        """Whether a kernel's inputs stay unchanged until the kernel that it is to be fused into runs."""
        for number in self._graph.kernels[index].reads:
            writers = self._writes.get(number, [])
            between = itertools.takewhile(lambda other: other < root, writers[bisect_right(writers, index) :])
            if any(roots[other] != root for other in between):
                return False
        return True


def _folded(group: Sequence[Kernel]) -> Kernel:
    last = group[-1]
    if len(group) == 1:
        return last
    made = {number for kernel in group for number in kernel.makes}
    reads = dict.fromkeys(number for kernel in group for number in kernel.reads if number not in made)
    return dataclasses.replace(
        last,
        reads=tuple(reads),
        makes=tuple(number for number in last.writes if number in made),
        overwrites=tuple(number for number in last.overwrites if number not in made),
    )


def _move(values: dict[int, Value], kernel: Kernel, group: Sequence[Kernel]) -> None:
    """Extends inputs of a fused kernel until it has run, and drops intermediate values never written."""
    if len(group) == 1:
        return
    for number in kernel.reads:
        if number in values:
            value = values[number]
            values[number] = dataclasses.replace(value, stop=max(value.stop, kernel.stop))
    for number in {number for each in group for number in each.makes}:
        if number in kernel.makes:
            value = values[number]
            start = min(kernel.start, value.stop - 1)  # the chain's last kernel writes it
            values[number] = dataclasses.replace(value, start=max(value.start, start))
        else:
            del values[number]


def _recounted(views: dict[int, list[int]], roots: Sequence[int]) -> dict[int, list[int]]:
    """Number of the remaining kernels that ran before each view, by allocation."""
    return {number: [bisect_left(roots, count) for count in counts] for number, counts in views.items()}
