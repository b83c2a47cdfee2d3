"""Memory that collectives such as `all_gather` allocate on a rank besides their results.

PyTorch has fake functions for the results of most collectives, since 2.11. This file adds those that are
missing, such as collectives of several tensors at a time, and the temporaries of NCCL's process group, which
exchanges a list of tensors as one flat tensor (`newLikeFlat` in
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, for `allgather` and `reduce_scatter`).
gloo's process group allocates no temporaries through PyTorch's CPU allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.operators import OpOverload, find_operator, has_kernel, operator_names
from autofit_workers.tracing.fake import streams
from autofit_workers.tracing.fake.ranks import batch_norms, shelves

_PROCESS_GROUP = "c10d.ProcessGroup"  # class of an argument
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")  # of collectives' operators
_library: list[torch.library.Library] = []


def _done() -> Any:
    """Finished `torch.distributed.Work`, boxed as c10d's operators return it."""
    from autofit_workers.pytorch.collectives import finished_work

    return finished_work().boxed()


def _all_reduced(tensors: list[Tensor], *_others: object) -> Any:
    """Result of an all-reduce: its tensors, and a finished `Work` whose future has them, as DDP needs."""
    from autofit_workers.pytorch.collectives import work_of_future

    future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
    future.set_result(tensors)
    return tensors, work_of_future(future).boxed()


def _gathered(outputs: list[list[Tensor]], *_others: object) -> Any:
    shelves.keep_too(*[_like_all(each) for each in outputs])
    return outputs, _done()


def _reduced(outputs: list[Tensor], inputs: list[list[Tensor]], *_others: object) -> Any:
    shelves.keep_too(*[_like_all(each) for each in inputs])
    return outputs, _done()


def _like_all(tensors: Sequence[Tensor]) -> Tensor | None:
    """New flat tensor as large as `tensors` together; None if shapes differ or they are not on the GPU."""
    first = tensors[0]
    if not first.is_cuda or any(each.shape != first.shape for each in tensors):
        return None
    return first.new_empty((len(tensors), *first.shape))


def _let_waits_be_seen() -> None:
    """Makes each `Work.wait` report that the current stream, but not the host, waits for the collective."""
    from autofit_workers.pytorch.collectives import WORKS

    for kind in WORKS:
        kind.wait = _seen(vars(kind)["wait"])


def _seen(wait: Callable[..., Any]) -> Callable[..., Any]:
    def waited(self: Any, *args: Any, **kwargs: Any) -> Any:
        streams.wait_for_collective(self)
        shelves.waited(self)
        return wait(self, *args, **kwargs)

    return waited


def _without_a_fake_function() -> Iterator[OpOverload]:
    """Yields the operators on process groups that have no fake function in this release of PyTorch."""
    for name in operator_names():
        namespace, _, plain = name.partition("::")
        if namespace == "c10d" and not has_kernel(name, "Meta"):
            collective: OpOverload = getattr(torch.ops.c10d, plain).default
            if any(_PROCESS_GROUP in str(argument.type) for argument in collective._schema.arguments):
                yield collective


def _fake_function(collective: OpOverload) -> Callable[..., Any]:
    """Fake function of a collective: returns the first argument, if the collective does, and a `Work`."""
    match len(collective._schema.returns):
        case 0:
            return lambda *_args: None
        case 1:
            return lambda *_args: _done()
        case _:
            return lambda *args: (args[0], _done())


def install() -> dict[Any, Callable[..., Any]]:
    """Registers fake functions for collectives that lack them.

    Returns:
        By operator, functions that replace collectives, for `composites.WITH_TEMPORARIES`.
    """
    from autofit_workers.pytorch.collectives import AsyncCollectiveTensor, import_fake_functions

    import_fake_functions()
    library = torch.library.Library("c10d", "IMPL")
    for collective in list(_without_a_fake_function()):
        library.impl(collective, _fake_function(collective), "Meta")
    _library.extend((library, batch_norms.install()))
    _let_waits_be_seen()
    c10d, functional = torch.ops.c10d, torch.ops._c10d_functional
    return {
        c10d.allreduce_.default: _all_reduced,
        c10d.allgather_.default: _gathered,
        c10d.reduce_scatter_.default: _reduced,
        functional.wait_tensor.default: torch.ops.aten.alias.default,  # returns its argument
        # A wrapper that waits when the result is used; PyTorch's fake function would copy the result.
        find_operator("_c10d_functional._wrap_tensor_autograd.default"): AsyncCollectiveTensor,  # since 2.11
    }
