"""This process as one of several ranks: the group that it joins, and its model among theirs."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch

from workers.errors import InapplicableError
from workers.process.ranks import LISTENER
from workers.protocol import TrialSpec

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def join(spec: TrialSpec, device: torch.device) -> int:
    """Joins the group of the trial's ranks, as `workers.process.ranks` has it; returns this process's rank.

    The group is left when the process ends: a rank that leaves earlier takes away what others still receive.
    """
    distributed: Any = torch.distributed
    # Nothing is waited for longer than the trial, whose supervisor says better what was late.
    timeout = timedelta(seconds=spec.deadline_seconds)
    num_ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    listener = os.environ.get(LISTENER)
    store = distributed.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        num_ranks,
        is_master=listener is not None,
        timeout=timeout,
        master_listen_fd=None if listener is None else int(listener),
    )
    distributed.init_process_group(
        BACKENDS[device.type], store=store, rank=rank, world_size=num_ranks, timeout=timeout
    )
    return rank


def wrapped(model: torch.nn.Module, spec: TrialSpec, *, training: bool) -> torch.nn.Module:
    """The model as the ranks train it together; they all have to come here.

    Raises:
        InapplicableError: there is nothing that they would do together.
    """
    if not training:
        raise InapplicableError(
            "--parallel ddp is for training: ranks exchange gradients, and inference has none; leave it out"
        )
    if spec.knobs.optimizer_in_backward:
        raise InapplicableError(
            "--optimizer-in-backward cannot be combined with --parallel: it steps parameters before the "
            "ranks have exchanged their gradients; drop one of them"
        )
    return torch.nn.parallel.DistributedDataParallel(model)


def agreed(wish: bool) -> bool:
    """Whether all ranks wish so; without a group, whether this process does."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return wish
    wishes = torch.tensor(int(wish))
    distributed.all_reduce(wishes, distributed.ReduceOp.MIN)
    return bool(wishes)
