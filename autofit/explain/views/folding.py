"""Operation folding (fusion): merges an element-wise kernel into the only kernel that reads its result.

The merged kernel's result is then never stored. A kernel is folded if

- it is element-wise and writes one allocation, and so does the next kernel that touches that allocation;
- both results have as many elements, so each element of one belongs to one of the other;
- only element-wise kernels run between the two, so a chain keeps its place in the step;
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
    """Graph in which each chain of element-wise kernels is fused into one kernel, as a compiler would do.

    The fused kernel runs in the place of the chain's last kernel. Intermediate results need no memory.
    """
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
    """Index, for each kernel of a graph, of the kernel that it is fused into; its own if it is not fused."""
    return _Folder(graph).roots()


class _Folder:
    """Decides for each kernel of a graph into which later kernel it can be fused, if any."""

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
        """Index of the only kernel that uses the result of a kernel, if both can be fused; else None.

        Both have to be element-wise, each with one result, of the same size. All kernels between them have
        to be element-wise too.

        Args:
            index: index of the kernel.
        """
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
        """Whether a kernel is the last that reads or writes a value, and the value may be freed afterwards.

        Args:
            number: number of the value's allocation.
            index: index of the kernel.
        """
        value = self._graph.values.get(number)
        is_last = self._touches[number][-1] == index
        return is_last and value is not None and not value.is_kept and not value.escapes

    def _inputs_last(self, index: int, root: int, roots: Sequence[int]) -> bool:
        """Whether the inputs of a kernel are unchanged until the kernel into which it would be fused has run.

        Args:
            index: index of the kernel.
            root: index of the kernel that it would be fused into.
            roots: for each kernel, the index of the kernel that it is fused into so far.
        """
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
    """Updates the lifetimes of a fused kernel's inputs and intermediate results, in place.

    Inputs are kept until the fused kernel has run. Intermediate results are dropped, as they are never
    written to memory.

    Args:
        values: values of the step, by the index of the allocation; this dict is changed.
        kernel: the fused kernel.
        group: the kernels that it replaces.
    """
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
    """Number of kernels that ran before each view, counted after fusion.

    Args:
        views: the numbers before fusion, by the allocation that is viewed.
        roots: indices of the kernels that are left after fusion, ascending.
    """
    return {number: [bisect_left(roots, count) for count in counts] for number, counts in views.items()}
