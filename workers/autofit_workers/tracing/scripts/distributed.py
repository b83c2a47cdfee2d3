"""Lets a script use `torch.distributed` as one rank of a fake process group.

PyTorch's own code of `DistributedDataParallel` and both FSDPs runs on this group.
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

_FOLLOWED = (ddp, fsdp, fsdp1)  # their classes are part of PyTorch, so they always exist


def install(ranks: Ranks, recorder: Recorder, communicators: Communicators) -> None:
    """Replaces a script's process groups by fake ones (`fake.ranks`), in this process for good.

    Args:
        ranks: gets number of ranks and rank once the script has joined its group.
        recorder: recorder of the script's memory, in which DDP's and FSDP's allocations get their category.
        communicators: gets whether NCCL makes communicators before the first collective.
    """
    _let_data_parallel_have_one_gpu()
    distributed: Any = torch.distributed
    if not distributed.is_available():
        return
    group.install()
    kept = ExitStack()  # never closed: categories stay set until the process ends

    def joined(*, is_eager: bool) -> None:
        ranks.joined(distributed.get_world_size(), distributed.get_rank())
        communicators.are_eager = is_eager
        kept.enter_context(sharding_followed(recorder, (kind.STRATEGY.followed() for kind in _FOLLOWED)))

    group.on_join(joined)
    # DDP would compare parameters' shapes with those of ranks that do not exist.
    when_imported("torch.nn.parallel.distributed", _let_ranks_have_one_model)


def has_group() -> bool:
    """Whether the script has initialized `torch.distributed`, even with a single rank."""
    package: Any = torch.distributed
    return bool(package.is_available() and package.is_initialized())


def _let_ranks_have_one_model(module: Any) -> None:
    module._verify_param_shape_across_processes = lambda *_args: None


def _let_data_parallel_have_one_gpu() -> None:
    """Makes `nn.DataParallel` run on the single GPU: move inputs there and call the model."""

    def forward_on_one(wrapper: Any, *inputs: Any, **kwargs: Any) -> Any:
        there = tree_map(lambda leaf: leaf.to(GPU) if isinstance(leaf, Tensor) else leaf, (inputs, kwargs))
        return wrapper.module(*there[0], **there[1])

    data_parallel: Any = nn.DataParallel
    data_parallel.forward = forward_on_one
