"""Joins the process group of a measured trial's ranks, and makes its ranks agree."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch

from autofit_workers.process.boundary.variables import LISTENER

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def join(device: torch.device, deadline_seconds: float) -> None:
    """Joins the trial's process group, by the environment variables of `autofit_workers.trials.ranks`.

    The group exists until the process ends: if a rank left earlier, others could not receive its data.

    Args:
        deadline_seconds: seconds until a collective times out, which is the trial's deadline: normally the
            supervisor, which knows which rank was late, ends the trial first.
    """
    distributed: Any = torch.distributed
    timeout = timedelta(seconds=deadline_seconds)
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


def agreed(wish: bool) -> bool:
    """Whether `wish` is true on all ranks, found by a collective; without a process group, `wish` itself."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return wish
    wishes = torch.tensor(int(wish))
    distributed.all_reduce(wishes, distributed.ReduceOp.MIN)
    return bool(wishes)


def settle() -> None:
    """Waits until no gloo thread runs a collective; does nothing without a process group.

    Code that waits for a collective's future, such as `DistributedDataParallel`, goes on before the thread
    has told PyTorch's profiler that the collective ended (`finishWorkGloo` of c10d's ProcessGroupGloo.cpp,
    `finish` of Work.cpp), and the profile may be gone by then. A barrier waits for all work before it
    (`AsyncBarrierWork`).
    """
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
