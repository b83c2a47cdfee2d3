"""Memory that collectives such as `all_gather` allocate on a rank beside their results.

PyTorch knows the results of most collectives on fake tensors. Here is the rest: those of several tensors at a
time, and what NCCL's process group takes for itself. The group exchanges lists of tensors as one flat tensor
(`newLikeFlat` in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp: `allgather`, `reduce_scatter`); gloo's
takes none on the CPU of which PyTorch's allocator knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autofit_workers.tracing.fake import streams
from autofit_workers.tracing.fake.ranks import batch_norms

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")  # that collectives are operators of
_OF_SEVERAL = (
    "allreduce_coalesced_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)
_library: list[torch.library.Library] = []


def _done() -> Any:
    """`Work` of a finished collective, boxed as c10d's operators return it."""
    from autofit_workers.pytorch.collectives import FakeWork

    return FakeWork().boxed()


def _all_reduced(tensors: list[Tensor], *_others: object) -> Any:
    """Reduced tensors and finished `Work`, from whose future DDP's reducer takes its buckets."""
    from autofit_workers.pytorch.collectives import work_of_future

    future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
    future.set_result(tensors)
    return tensors, work_of_future(future).boxed()


def _gathered(outputs: list[list[Tensor]], *_others: object) -> Any:
    _flat = [_like_all(each) for each in outputs]
    return outputs, _done()


def _reduced(outputs: list[Tensor], inputs: list[list[Tensor]], *_others: object) -> Any:
    _flat = [_like_all(each) for each in inputs]
    return outputs, _done()


def _like_all(tensors: Sequence[Tensor]) -> Tensor | None:
    """New tensor as large as all of `tensors`; None if their shapes differ or they are not on the GPU."""
    first = tensors[0]
    if not first.is_cuda or any(each.shape != first.shape for each in tensors):
        return None
    return first.new_empty((len(tensors), *first.shape))


def _let_waits_be_seen() -> None:
    """Reports each `Work.wait`, which makes the current stream wait for a collective, but not the host."""
    from autofit_workers.pytorch.collectives import FakeWork

    kinds: tuple[Any, ...] = (torch.distributed.Work, FakeWork)
    for kind in kinds:
        kind.wait = _seen(vars(kind)["wait"])


def _seen(wait: Callable[..., Any]) -> Callable[..., Any]:
    def waited(self: Any, *args: Any, **kwargs: Any) -> Any:
        streams.wait_for_collective(self)
        return wait(self, *args, **kwargs)

    return waited


def install() -> dict[Any, Callable[..., Any]]:
    """Registers collectives that PyTorch has no fake functions for; returns replacements by operator."""
    from autofit_workers.pytorch.collectives import AsyncCollectiveTensor

    library = torch.library.Library("c10d", "IMPL")
    for name in _OF_SEVERAL:
        library.impl(name, lambda *_args: _done(), "Meta")
    _library.extend((library, batch_norms.install()))
    _let_waits_be_seen()
    c10d, functional = torch.ops.c10d, torch.ops._c10d_functional
    return {
        c10d.allreduce_.default: _all_reduced,
        c10d.allgather_.default: _gathered,
        c10d.reduce_scatter_.default: _reduced,
        functional.wait_tensor.default: torch.ops.aten.alias.default,  # it gives back what it was given
        # A class around the result, which waits where it is used; the fake function would copy here too.
        functional._wrap_tensor_autograd.default: AsyncCollectiveTensor,
    }
