"""Workloads with some 30 MB of gradients, so that they fill several buckets, and one real rank of each.

Run as a program with names of workloads, it writes what a rank of `DistributedDataParallel` allocates.
"""

from __future__ import annotations

import functools
import gc
import json
import sys

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

from autofit_workers.tracing.probe import NUM_TRACED_STEPS
from autofit_workers.workload.optimizers import make_optimizers
from autofit_workers.workload.step import train_step
from autofit_workers.workload.workload import Workload

WIDTH = 1000


class Layers(nn.Module):
    """Layers whose gradients arrive in another order than that of their registration."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(1502, WIDTH)
        self.first = nn.Sequential(nn.Linear(WIDTH, 1500), nn.BatchNorm1d(1500), nn.ReLU())
        self.middle = nn.Sequential(nn.Linear(1500, 1501), nn.ReLU(), nn.Linear(1501, 1502))
        self.register_buffer("table", torch.zeros(300_000))  # broadcast before every step

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.last(self.middle(self.first(batch)))
        return output


class OfTwoTypes(Layers):
    """Layers of two dtypes, whose gradients go to buckets of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.middle.double()

    def forward(self, batch: Tensor) -> Tensor:
        output: Tensor = self.last(self.middle(self.first(batch).double()).float())
        return output


def _rows(batch_size: int, device: torch.device) -> Tensor:
    return torch.randn(batch_size, WIDTH, device=device)


def _mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = model(batch)
    return output.square().mean()


def _accumulating(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    """Steps with two passes; the first step's second pass finds the order of gradients known."""
    optimizer.zero_grad()
    for part in batch.split(2):
        _mean_square(model, part).backward()
    optimizer.step()


_workload = functools.partial(
    Workload,
    make_batch=_rows,
    loss=_mean_square,
    optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False),
)
layers = _workload(build_model=Layers)
of_two_types = _workload(build_model=OfTwoTypes)
accumulating = _workload(build_model=Layers, step=_accumulating)
partly_used = _workload(
    build_model=Layers, loss=lambda model, batch: model.first(model(batch).detach()).mean()
)
passed_by = _workload(build_model=Layers, loss=lambda model, batch: model.first(batch).mean())
frozen = _workload(build_model=lambda: Layers().requires_grad_(False))


class OneRank(distributed.ProcessGroup):
    """A group of one rank, whose collectives are over when they return.

    A thread of gloo's may hold a tensor for a moment after its collective was waited for, and then frees it
    where the profiler, which follows one thread, does not see it.
    """

    def __init__(self) -> None:
        super().__init__(0, 1)

    def allreduce(self, tensors: list[Tensor], options: object = None) -> distributed.Work:
        future: Future[list[Tensor]] = Future()
        future.set_result(tensors)
        return _create_work_from_future(future)

    broadcast = allreduce

    def allgather(
        self, gathered: list[list[Tensor]], tensors: list[Tensor], options: object = None
    ) -> distributed.Work:
        for of_every_rank, tensor in zip(gathered, tensors, strict=True):
            of_every_rank[0].copy_(tensor)
        return self.allreduce(tensors)


def allocated_by_a_rank(workload: Workload) -> list[int]:
    """Bytes of every allocation of the CPU, negative for a free, from the wrapper's construction on."""
    from torch.profiler import ProfilerActivity, profile

    model = workload.build_model()
    with (
        torch.autograd.set_multithreading_enabled(False),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        rank = nn.parallel.DistributedDataParallel(model, process_group=OneRank())
        optimizer = make_optimizers(workload, rank)
        for _ in range(NUM_TRACED_STEPS):
            train_step(workload, rank, optimizer, workload.make_batch(4, torch.device("cpu")))
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    memory = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    return [e.nbytes() for e in memory]


if __name__ == "__main__":
    allocated = {}
    for name in sys.argv[1:]:
        gc.collect()  # what an earlier one left in cycles would be freed under the profiler
        allocated[name] = allocated_by_a_rank(globals()[name])
    json.dump(allocated, sys.stdout)
