"""Packs a step's values into buffers: values are freed early, and results reuse the memory of dead inputs."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.explain.views.memory_plan import Buffer
from autofit.explain.views.step_graph import StepGraph, Use, uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Buffers that hold the values (allocations) of a step, where a value may take over another's memory.

    Attributes:
        buffers: buffers, each with its lifetime.
        holders: index of the buffer that holds each value, by the number of its allocation; a buffer may
            hold several values one after another.
    """

    buffers: tuple[Buffer, ...]
    holders: dict[int, int]


def pack(graph: StepGraph) -> Packed:
    """Packs the values (allocations) of a step into buffers: freed early, and in place where that is legal.

    A value is freed after its last reader. The result of an element-wise kernel takes over the memory of an
    input that nobody reads later, if the input is of the same size, or is larger and would live as long in
    eager mode. So no more bytes are needed at any moment than in eager mode.
    """
    known = uses(graph)
    place = _places(graph, known)
    spans: dict[int, tuple[int, int]] = {}
    for number, value in graph.values.items():
        start, stop = value.start, known[number].stop
        owner = place.get(number, number)
        if owner in spans:
            first, last = spans[owner]
            start, stop = min(first, start), max(last, stop)
        spans[owner] = start, stop
    index_of = {owner: index for index, owner in enumerate(spans)}
    return Packed(
        buffers=tuple(Buffer(*span, graph.values[owner].num_bytes) for owner, span in spans.items()),
        holders={number: index_of[place.get(number, number)] for number in graph.values},
    )


def _places(graph: StepGraph, known: dict[int, Use]) -> dict[int, int]:
    """Results that take over an input's memory: by result, the number of the memory's first value.

    Args:
        known: for each value, until when it is needed.
    """
    place: dict[int, int] = {}
    for index, kernel in enumerate(graph.kernels):
        if not kernel.is_elementwise or len(kernel.makes) != 1 or kernel.overwrites:
            continue
        result = kernel.makes[0]
        inputs = [
            number
            for number in kernel.reads
            if number in known
            and known[number].last_kernel == index
            and _fits(graph, known, number, place.get(number, number), result)
        ]
        if inputs:
            owners = [place.get(number, number) for number in inputs]
            place[result] = min(owners, key=lambda owner: graph.values[owner].num_bytes)
    return place


def _fits(graph: StepGraph, known: dict[int, Use], number: int, owner: int, result: int) -> bool:
    """Whether the result of a kernel may take over the memory of one of its inputs.

    Args:
        known: for each value, until when it is needed.
        number: number of the input's allocation.
        owner: number of the value that had the input's memory first.
        result: number of the result's allocation.
    """
    value, first, taker = graph.values[number], graph.values[owner], graph.values[result]
    return (
        not value.is_kept
        and not value.escapes
        and value.element_bytes == taker.element_bytes > 0
        and value.num_bytes >= taker.num_bytes
        # Otherwise a small result that lives long would keep a large buffer alive.
        and (first.num_bytes == taker.num_bytes or known[result].stop <= first.stop)
    )
