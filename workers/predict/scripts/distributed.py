"""`torch.distributed` for a script of one process: collectives that leave everything as it is.

NCCL of one rank gives back what it is given. What `DistributedDataParallel` allocates of its own, its
buckets and broadcasts, is recorded as for the rank of several.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from workers.errors import InapplicableError, UnsupportedError
from workers.predict.fake.devices import GPU
from workers.predict.recording.data_parallel import DataParallel
from workers.predict.recording.recorder import Recorder
from workers.scripts.launchers import ONE_PROCESS
from workers.scripts.trackers import Silence

Refuse = Callable[[Exception], NoReturn]


class _Group(Silence):
    """The process group, of one rank."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


class _Work(Silence):
    """A collective that is done."""

    def wait(self, *_args: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def install(name: str, recorder: Recorder, refuse: Refuse) -> None:
    """Lets this process answer a script, for good.

    Args:
        name: of the script.
        recorder: of what `DistributedDataParallel` allocates.
        refuse: ends the script for a reason.
    """
    _wrap_models(recorder)
    distributed: Any = torch.distributed
    if not distributed.is_available():
        return
    is_running = [False]

    def init_process_group(
        backend: Any = None, init_method: Any = None, timeout: timedelta | None = None,  # noqa: ARG001
        world_size: int = -1, rank: int = -1, *_args: Any, **_kwargs: Any,
    ) -> None:  # fmt: skip
        num = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        if num > 1 or rank > 0:
            refuse(UnsupportedError(f"{name} is one of {num} processes of torch.distributed: {ONE_PROCESS}"))
        is_running[0] = True

    def destroy(*_args: Any, **_kwargs: Any) -> None:
        is_running[0] = False

    answers: dict[str, Callable[..., Any]] = {
        "init_process_group": init_process_group,
        "destroy_process_group": destroy,
        "is_initialized": lambda: is_running[0],
        "get_rank": lambda *_: 0,
        "get_node_local_rank": lambda *_: 0,
        "get_world_size": lambda *_: 1,
        "get_backend": lambda *_: "nccl",
        "is_nccl_available": lambda: True,  # PyTorch's builds for CUDA have it
        "new_group": lambda *_args, **_kwargs: _Group(),
        "barrier": _kept,
        "monitored_barrier": _kept,
        "all_reduce": _kept,
        "reduce": _kept,
        "broadcast": _kept,
        "broadcast_object_list": _kept,
        "send": _kept,
        "all_gather": _gathered,
        "gather": lambda tensor, gather_list=None, *_args, **_kwargs: _gathered(gather_list or [], tensor),
        "all_gather_object": _listed,
        "gather_object": lambda obj, object_gather_list=None, *_args, **_kwargs: _listed(
            object_gather_list or [], obj
        ),
        "all_gather_into_tensor": _copied,
        "reduce_scatter_tensor": _copied,
        "all_to_all_single": _copied,
        "reduce_scatter": lambda output, input_list, *_args, **_kwargs: _copied(output, input_list[0]),
        "scatter": lambda tensor, scatter_list=None, *_args, **_kwargs: _copied(
            tensor, (scatter_list or [tensor])[0]
        ),
    }
    for each in (distributed, distributed.distributed_c10d):
        for key, answer in answers.items():
            setattr(each, key, answer)
    distributed.distributed_c10d._get_default_group = _Group


def _kept(*_args: Any, async_op: bool = False, **_kwargs: Any) -> _Work | None:
    return _Work() if async_op else None


def _copied(
    output: Tensor, given: Tensor, *_args: Any, async_op: bool = False, **_kwargs: Any
) -> _Work | None:
    with torch.no_grad():
        output.copy_(given.reshape(output.shape))
    return _kept(async_op=async_op)


def _gathered(
    outputs: list[Tensor], given: Tensor, *_args: Any, async_op: bool = False, **_kwargs: Any
) -> _Work | None:
    for output in outputs:
        _copied(output, given)
    return _kept(async_op=async_op)


def _listed(outputs: list[Any], given: Any, *_args: Any, **_kwargs: Any) -> None:
    outputs[:] = [given] * len(outputs)


def _wrap_models(recorder: Recorder) -> None:
    class DistributedDataParallel(nn.Module):
        """The model, with what its wrapper allocates."""

        def __init__(self, module: nn.Module, *_args: Any, **options: Any) -> None:
            super().__init__()
            self.module = module
            self.device = next(module.parameters()).device
            self.require_backward_grad_sync = True
            if options.get("gradient_as_bucket_view"):
                return  # gradients lie in the buckets, which are as large
            try:
                DataParallel(module, recorder, finds_unused=options.get("find_unused_parameters", False))
            except InapplicableError as error:
                raise RuntimeError(
                    "DistributedDataParallel is not needed when a module doesn't have any parameter that "
                    "requires a gradient."
                ) from error

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

        @contextmanager
        def no_sync(self) -> Iterator[None]:
            """Lets gradients accumulate; nothing is exchanged in any case."""
            yield

        join = no_sync

        def register_comm_hook(self, *_args: Any, **_kwargs: Any) -> None:
            """A hook of one rank has nothing to change."""

        _set_static_graph = register_comm_hook

    def forward_on_one(wrapper: Any, *inputs: Any, **kwargs: Any) -> Any:
        """As `nn.DataParallel` does on one GPU: inputs are brought there, and the model is called."""
        there = tree_map(lambda leaf: leaf.to(GPU) if isinstance(leaf, Tensor) else leaf, (inputs, kwargs))
        return wrapper.module(*there[0], **there[1])

    data_parallel: Any = nn.DataParallel
    data_parallel.forward = forward_on_one
    parallel: Any = torch.nn.parallel
    for each in (parallel, parallel.distributed):
        each.DistributedDataParallel = DistributedDataParallel
