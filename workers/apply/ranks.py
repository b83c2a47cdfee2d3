"""This process as one of several ranks: the group that it joins, and its part of their model."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch

from workers.apply import pipelining, setting, zero
from workers.apply.compiling import compiled
from workers.apply.sharding import require_one_mesh, sharded
from workers.errors import InapplicableError
from workers.knobs.base import QUANTIZATIONS, is_of_bitsandbytes
from workers.process.ranks import LISTENER
from workers.protocol import Probe, TrialSpec
from workers.setup import CP, DDP, GENERATE, PP, TP, TRAIN
from workers.workload.step import seed
from workers.workload.workload import Optimizers, Workload

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def require_applicable(spec: TrialSpec, workload: Workload) -> None:
    """Refuses what ranks do not do together.

    Args:
        workload: once it is overridden.

    Raises:
        InapplicableError: the mode or a knob is not for this parallelism.
    """
    parallel, knobs, mode = spec.setup.parallel, spec.knobs, workload.mode
    if not parallel:
        return
    if spec.probe is not Probe.PREDICT and not parallel.can_be_measured:
        raise InapplicableError(
            f"--parallel {parallel} is predicted and not measured: leave out what measures (--probe measure, "
            "--device), or cp and +offload"
        )
    if parallel.zero is not None:
        zero.require_applicable(parallel, knobs, mode, has_step=workload.step is not None)
    if parallel.pipeline is not None:
        pipelining.require_applicable(parallel, knobs, workload)
    if parallel.offloads_shards and spec.is_for_host:
        raise InapplicableError(
            f"--parallel {parallel} brings shards from a GPU to the host, and trials on the CPU have them "
            "there: leave out +offload"
        )
    if parallel.degree(CP) > 1 and spec.is_for_host:
        raise InapplicableError(
            f"--parallel {parallel} is for GPUs, whose kernels of attention PyTorch's context parallelism "
            "takes: leave out cp, or predict for a card"
        )
    if parallel.degree(DDP) > 1 and mode != TRAIN:
        raise InapplicableError(
            "--parallel ddp is for training: ranks exchange gradients, and inference has none; leave it out"
        )
    if mode == GENERATE:
        raise InapplicableError(
            f"--parallel {parallel} is for training and inference: leave it out to generate"
        )
    is_sharded_so = parallel.fsdp1 is not None and is_of_bitsandbytes(knobs.base)
    if parallel.shards and knobs.base in QUANTIZATIONS and not is_sharded_so:
        raise InapplicableError(
            f"--parallel {parallel} cannot be combined with base {knobs.base}: weights that a library "
            "quantizes are sharded by fsdp1:N alone, of bitsandbytes and in 4 bits; use it, or ddp:N"
        )


def join(spec: TrialSpec, device: torch.device) -> None:
    """Joins the group of the trial's ranks, as `workers.process.ranks` has it; nothing of a process alone.

    The group is left when the process ends: a rank that leaves earlier takes away what others still receive.
    """
    if not spec.setup.parallel:
        return
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
    if spec.setup.parallel.zero is not None:
        zero.join(device.type)


def placed(
    model: torch.nn.Module, spec: TrialSpec, device: torch.device, workload: Workload
) -> torch.nn.Module:
    """The model on its device; of one that is sharded this rank's part, brought there part by part.

    Raises:
        InapplicableError, MissingLibraryError: as of `setting.placed_model` and `sharding.sharded`.
    """
    parallel, knobs = spec.setup.parallel, spec.knobs
    if not parallel.shards:
        return setting.placed_model(model, knobs, device)
    if parallel.zero is not None:  # its engine brings the model there, once there is an optimizer
        return setting.adapted_model(model, knobs)
    if knobs.base in QUANTIZATIONS:
        raise InapplicableError(
            f"--parallel {parallel} with base {knobs.base} is predicted and not measured: leave out what "
            "measures (--probe measure, --device), or use ddp:N"
        )
    model = setting.adapted_model(model, knobs)
    if parallel.pipeline is not None:
        place = parallel.place(torch.distributed.get_rank())
        model = pipelining.cut(model, parallel.pipeline, place[PP], workload)
    model = sharded(model, parallel, device_kind=device.type, precision=knobs.precision)
    if workload.mode == TRAIN and knobs.clip_grad_norm is not None:
        require_one_mesh(model, parallel)
    model = model.to(device)  # what no rank shares with another
    return compiled(model) if knobs.compile else model


def wrapped(model: torch.nn.Module, spec: TrialSpec) -> torch.nn.Module:
    """The model as its ranks call it, each with batches of its own but for those that share one."""
    parallel = spec.setup.parallel
    if not parallel:
        return model
    if parallel.degree(DDP) > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    # Stages of a pipeline are far from each other in the mesh, ranks of spread tensors are neighbours.
    in_stage = torch.distributed.get_rank() % (parallel.num_ranks // parallel.degree(PP))
    seed(spec.seed + in_stage // parallel.degree(TP))
    return model


def trained(
    workload: Workload, model: torch.nn.Module, optimizers: Optimizers | None, spec: TrialSpec
) -> tuple[Workload, Optimizers | None]:
    """The workload and the optimizers as ranks train them together, where one of DeepSpeed's engines does.

    Raises:
        InapplicableError: as of `zero.engine`.
    """
    parallel = spec.setup.parallel
    if parallel.zero is None or optimizers is None:
        return workload, optimizers
    engine = zero.engine(model, optimizers, parallel, spec.knobs, spec.batch_size)
    return zero.stepped(workload, engine), engine.basic_optimizer


def bucket_bytes(model: torch.nn.Module) -> int:
    """Bytes of the buckets of `DistributedDataParallel`, which no tensor that Python knows has."""
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return 0
    ask: Any = model._get_ddp_logging_data  # noqa: SLF001 - its only account of them
    told = ask()
    sizes: str = told.get("rebuilt_bucket_sizes") or told["bucket_sizes"]
    return sum(map(int, sizes.split(",")))


def agreed(wish: bool) -> bool:
    """Whether all ranks wish so; without a group, whether this process does."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return wish
    wishes = torch.tensor(int(wish))
    distributed.all_reduce(wishes, distributed.ReduceOp.MIN)
    return bool(wishes)


def settle() -> None:
    """Waits until no thread of gloo is at a collective any more; nothing without a group.

    What waits for a collective by its future, as `DistributedDataParallel` does, goes on before the thread
    has told PyTorch's profiler of its end (`finishWorkGloo` of c10d's ProcessGroupGloo.cpp, `finish` of
    Work.cpp), and the profile may be gone by then. A barrier waits for all work before it
    (`AsyncBarrierWork`).
    """
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
