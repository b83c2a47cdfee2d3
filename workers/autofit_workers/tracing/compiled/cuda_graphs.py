"""CUDA graphs of `torch.compile` (`mode="reduce-overhead"`): each compiled graph runs in their memory pool.

A program's graphs share one pool and one stream (`CUDAGraphTreeManager`, torch/_inductor/cudagraph_trees.py).
What a graph allocates lies in the pool, and so do copies of its inputs that have another address in each
step, such as the batch. A replayed graph allocates nothing, but its pool stays as large as it was recorded:
so every step is followed as the one that records.

The caching allocator keeps free blocks by stream as it keeps them by pool: a stream stands for the pool.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from autofit_workers.pytorch import inductor
from autofit_workers.tracing.fake.streams import GraphsStream

Graph = Callable[[list[Any]], Any]


class _Pool:
    """Stream of the pool, and the tensors in it that graphs returned and that still live."""

    def __init__(self) -> None:
        self.stream: Any = GraphsStream()
        self._returned: dict[int, StorageWeakRef] = {}

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a graph returned the tensor's memory, so that its address is the same in each step."""
        reference = self._returned.get(StorageWeakRef(tensor.untyped_storage()).cdata)
        return reference is not None and not reference.expired()

    def keep(self, outputs: Any) -> None:
        """Notes what a graph returned."""
        self._returned = {key: each for key, each in self._returned.items() if not each.expired()}
        for each in outputs:
            if isinstance(each, torch.Tensor):
                reference = StorageWeakRef(each.untyped_storage())
                self._returned[reference.cdata] = reference


@functools.cache
def _pool() -> _Pool:
    """Pool of the program's graphs, made for the first of them."""
    return _Pool()


def install() -> None:
    """Replaces the recording of CUDA graphs in this process, for good."""
    inductor.RECORD_GRAPH.replace(_recorded)
    inductor.say_that_memory_is_cached()
    inductor.GRAPH_MANAGER.replace(lambda *_args, **_options: _Manager)


def forget() -> None:
    """Forgets the pool of an earlier program in this process."""
    _pool.cache_clear()


class _Manager:
    """Stand-in for the manager of recorded graphs."""

    @staticmethod
    def set_to_running_backward() -> None:
        """Does nothing: without recorded graphs there are no generations of them."""


def _recorded(
    graph: Graph,
    static_input_idxs: Sequence[int] = (),
    *,
    mutated_input_idxs: Sequence[int] = (),
    **_options: Any,
) -> Graph:
    """Replacement for Inductor's `cudagraphify`.

    Args:
        graph: compiled graph, which takes a list of inputs and clears it.
        static_input_idxs: numbers of inputs whose address never changes, such as parameters.
        mutated_input_idxs: numbers of inputs that the graph writes to.
    """
    static = frozenset(static_input_idxs)

    def run(inputs: list[Any]) -> Any:
        pool = _pool()
        moved = [
            number
            for number, each in enumerate(inputs)
            if isinstance(each, torch.Tensor) and number not in static and not pool.holds(each)
        ]
        if not set(moved).isdisjoint(mutated_input_idxs):  # PyTorch runs such a graph without recording it
            return graph(inputs)
        with _in_pool(pool):
            given = list(inputs)
            inputs.clear()
            for number in moved:
                given[number] = _copied(given[number])
            outputs = graph(given)
        pool.keep(outputs)
        return outputs

    return run


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cuda":
        return tensor
    copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


@contextmanager
def _in_pool(pool: _Pool) -> Iterator[None]:
    """Context in which tensors are allocated in the pool; the program's stream waits for what runs there."""
    before = torch.cuda.current_stream()
    pool.stream.wait_stream(before)
    with torch.cuda.stream(pool.stream):
        yield
    before.wait_stream(pool.stream)
