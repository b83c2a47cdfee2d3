"""Finds the lines of a script that keep memory alive by putting tensors into containers.

A line may keep a tensor, whose autograd graph may keep further ones:

    output = model(batch)          allocates 32 MiB here, and in the model's layers
    outputs.append(output)         keeps them alive
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor

from autofit_workers.process.garbage import looked_through
from autofit_workers.scripts.kept import KeptIn
from autofit_workers.tracing.recording.recorder import Recorder

_LEAST_HELD = 3  # least number of tensors in a container that counts
_MOST_DEPTH = 3  # of nested containers
_MOST_NODES = 2_000  # most autograd nodes looked at for one tensor


def keepers(recorder: Recorder, kept: KeptIn, sources: Collection[str]) -> dict[str, str]:
    """Maps source lines that allocate memory to the source line that keeps most of it alive, if known.

    Args:
        kept: finds the line at which the script put values into a container.
        sources: source lines of allocations, as `file:line:function`.
    """
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    with looked_through():
        containers = [(line, each) for each in gc.get_objects() if (line := kept.line_of(each)) is not None]
    for line, container in containers:
        tensors = list(_tensors_in(container))
        if len(tensors) < _LEAST_HELD:
            continue
        for index in {each for tensor in tensors for each in _held_by(recorder, tensor)}:
            allocation = recorder.allocations[index]
            if allocation.source in sources:
                votes[allocation.source][line] += allocation.num_bytes
    return {source: lines.most_common(1)[0][0] for source, lines in votes.items()}


def _held_by(recorder: Recorder, tensor: Tensor) -> Iterator[int]:
    """Yields indices of the allocations that a tensor keeps alive: its own, and its autograd graph's."""
    found = [tensor]
    nodes: list[Any] = [tensor.grad_fn]
    seen = {None}
    while nodes and len(seen) < _MOST_NODES:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        found += _saved_in(node)
        nodes += [each for each, _ in node.next_functions]
    for each in found:
        index = recorder.allocation_of(each)
        if index is not None:
            yield index


def _saved_in(node: Any) -> list[Tensor]:
    names = [name for name in dir(node) if name.startswith("_saved_")] or ["saved_tensors"]
    try:
        values = [getattr(node, name, None) for name in names]
    except RuntimeError:  # backward has freed the saved tensors
        return []
    return list(_tensors_in(values))


def _tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth <= _MOST_DEPTH and isinstance(value, dict):
        yield from _tensors_in(list(value.values()), depth)
    elif depth <= _MOST_DEPTH and isinstance(value, list | tuple | set | deque):
        for each in value:
            yield from _tensors_in(each, depth + 1)
