"""Lets a script use `torch.distributed` as one rank of a fake process group.

PyTorch's own `DistributedDataParallel` and both its FSDPs run on it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from autofit_workers.apply.parallel import ddp, fsdp, fsdp1
from autofit_workers.pytorch.pytree import tree_map
from autofit_workers.scripts.ranks import Ranks
from autofit_workers.tracing.fake.devices import GPU
from autofit_workers.tracing.fake.ranks import group
from autofit_workers.tracing.recording.communicators import Communicators
from autofit_workers.tracing.recording.recorder import Recorder
from autofit_workers.tracing.recording.sharding import followed as sharding_followed
from autofit_workers.workload.libraries.finders import when_imported

_FOLLOWED = (ddp, fsdp, fsdp1)  # PyTorch's own, which are there whatever a script imports


def install(ranks: Ranks, recorder: Recorder, communicators: Communicators) -> None:
    """Replaces a script's process groups by the fake one of `fake.ranks`, in this process for good.

    Args:
        ranks: are told which rank the script says that it is.
        recorder: records what sharded models allocate.
        communicators: are told whether NCCL has communicators before anything is exchanged.
    """
    _let_data_parallel_have_one_gpu()
    distributed: Any = torch.distributed
    if not distributed.is_available():
        return
    group.install()
    kept = ExitStack()  # for as long as this process lives

    def joined(*, is_eager: bool) -> None:
        ranks.joined(distributed.get_world_size(), distributed.get_rank())
        communicators.are_eager = is_eager
        kept.enter_context(sharding_followed(recorder, (kind.STRATEGY.followed() for kind in _FOLLOWED)))

    group.on_join(joined)
    # Sizes of other ranks' parameters would be compared, which are this one's own.
    when_imported("torch.nn.parallel.distributed", _let_ranks_have_one_model)


def has_group() -> bool:
    """Whether the script has initialized `torch.distributed`, even with one rank."""
    package: Any = torch.distributed
    return bool(package.is_available() and package.is_initialized())


def _let_ranks_have_one_model(module: Any) -> None:
    module._verify_param_shape_across_processes = lambda *_args: None


def _let_data_parallel_have_one_gpu() -> None:
    """Makes `nn.DataParallel` move its inputs to the one GPU and call the model there."""

    def forward_on_one(wrapper: Any, *inputs: Any, **kwargs: Any) -> Any:
        there = tree_map(lambda leaf: leaf.to(GPU) if isinstance(leaf, Tensor) else leaf, (inputs, kwargs))
        return wrapper.module(*there[0], **there[1])

    data_parallel: Any = nn.DataParallel
    data_parallel.forward = forward_on_one
