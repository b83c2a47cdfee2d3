"""Tensors that NCCL's process group keeps for collectives for which the program does not wait.

Since PyTorch 2.8 an asynchronous collective keeps references to its inputs, outputs and flat temporaries, on
its shelf, in place of `record_stream`: they stay allocated. `Work.wait` empties the shelf. Waiting for the
collective's future does not, nor does dropping its `Work`. Then a thread that looks ten times a second hands
shelves over whose collective is done on the GPU, and the next collective that the program begins empties them
(`collective`, `Watchdog::runLoop` and `workEnqueue` in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).

How far the GPU lags decides when that is. Here the host is a step ahead, as it is in a program that reads no
value of the GPU: a collective is done by the second backward pass after it, or once the host has waited.
Steps that are shorter than the thread's tenth of a second leave those of one step more, which is not
followed, as a trace knows no times: modded-nanogpt's steps of 60 and 97 ms hold 3.6 and 4.5 % more for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.pytorch.pytree import tree_leaves
from autofit_workers.spec.releases import COLLECTIVES_KEEP_TENSORS
from autofit_workers.tracing import followed_release

NAMESPACE = "c10d"  # of the operators that begin collectives
_PASSES_BEHIND = 2
_MOST_FRAMES = 40  # between an operator and the function of `torch.distributed` that called it
_OF_USERS = "distributed_c10d.py"  # file of the functions that programs call
_CPPS_CALLERS = ("parallel/distributed.py", "distributed/utils.py", "autograd/graph.py")


@dataclass(eq=False, slots=True)
class _Shelf:
    """Tensors of a collective.

    Attributes:
        work: handle that the program got, of class `torch.distributed.Work`.
        tensors: tensors that the process group refers to.
        num_passes: number of backward passes that had begun before the collective.
        is_done: whether the host has waited for the GPU since.
    """

    work: Any
    tensors: list[Tensor]
    num_passes: int
    is_done: bool = False


class _Shelves:
    def __init__(self) -> None:
        self.filled: list[_Shelf] = []
        self.temporaries: list[Tensor] = []
        self.num_passes = 0


_shelves = _Shelves()


def begin_program() -> None:
    """Forgets the collectives of an earlier script or workload in this process."""
    _shelves.__init__()  # type: ignore[misc]


def begin_backward() -> None:
    """Notes that the program has begun another backward pass."""
    _shelves.num_passes += 1


def host_waited() -> None:
    """Notes that the host has waited for all work on the GPU, so that the collectives so far are done."""
    for shelf in _shelves.filled:
        shelf.is_done = True


def keep_too(*temporaries: Tensor | None) -> None:
    """Adds temporaries that a collective makes to those that are kept for it."""
    _shelves.temporaries += [each for each in temporaries if each is not None]


def enqueue(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    """Notes that a collective began: empties the shelves of those that are done, and fills its own.

    Args:
        func, args, kwargs: call of the operator that begins it.
        result: what the operator returned; among it a handle, if it is a collective.
    """
    temporaries, _shelves.temporaries = _shelves.temporaries, []
    last = result[-1] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(last, torch.ScriptObject) or followed_release.is_before(COLLECTIVES_KEEP_TENSORS):
        return
    _shelves.filled = [each for each in _shelves.filled if not _is_found_done(each)]
    if _is_asynchronous(func, args, kwargs) and _is_called_by_program():
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        work = torch.distributed.Work.unbox(last)
        _shelves.filled.append(_Shelf(work, tensors + temporaries, _shelves.num_passes))


def waited(work: object) -> None:
    """Notes that the program waits for a collective by its handle, which empties its shelf."""
    _shelves.filled = [each for each in _shelves.filled if each.work is not work]


def _is_found_done(shelf: _Shelf) -> bool:
    return shelf.is_done or _shelves.num_passes - shelf.num_passes >= _PASSES_BEHIND


def _is_asynchronous(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    names: Iterable[str] = (argument.name for argument in func._schema.arguments)
    return bool({**dict(zip(names, args, strict=False)), **kwargs}.get("async_op", True))


def _is_called_by_program() -> bool:
    """Whether a function of `torch.distributed` began the collective; waits of C++ would not be seen."""
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        name = frame.f_code.co_filename
        if name.endswith(_OF_USERS):
            return True
        if name.endswith(_CPPS_CALLERS) or frame.f_back is None:
            return False
        frame = frame.f_back
    return False
