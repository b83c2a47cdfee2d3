"""Workloads for the CUDA probe, loaded by trials' processes, by path."""

from __future__ import annotations

import os
import signal
import threading

import torch

from autofit_workers.workload.workload import Workload

MIB = 2**20


def _linear():
    return torch.nn.Linear(256, 256)


def _rows(batch_size, device):
    return torch.ones(batch_size, 256, device=device)


def linear():
    return Workload(
        build_model=_linear, make_batch=_rows, loss=lambda model, batch: model(batch).sum(), optimizer="adam"
    )


def convolution():
    return Workload(
        build_model=lambda: torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1)
        ),
        make_batch=lambda batch_size, device: torch.randn(batch_size, 3, 64, 64, device=device),
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer="sgd-momentum",
    )


def hungry():
    """Holds 64 MiB per sample during the step."""

    def loss(model, batch):
        kept = torch.ones(batch.shape[0] * 64 * MIB // 4, device=batch.device)
        return model(batch).sum() + kept[0]

    return Workload(build_model=_linear, make_batch=_rows, loss=loss)


def fragmented():
    """Asks for 320 MiB while 256 MiB lie cached: under 512 MiB that needs a release and a retry."""

    def loss(model, batch):
        for num_mib in (256, 320):
            torch.empty(num_mib * MIB, dtype=torch.uint8, device=batch.device)
        return model(batch).sum()

    return Workload(build_model=_linear, make_batch=_rows, loss=loss)


def hungry_in_evaluation():
    """Holds 64 MiB per sample in evaluation alone, as a model does that then returns all its layers."""

    def loss(model, batch):
        num_kept = 0 if model.training else batch.shape[0] * 64 * MIB // 4
        kept = torch.ones(1 + num_kept, device=batch.device)
        return model(batch).sum() + kept[0]

    return Workload(build_model=_linear, make_batch=_rows, loss=loss)


def idle():
    """Works on the processor, whatever device it is given."""

    def step(model, optimizer, batch):
        for parameter in here.parameters():
            parameter.data.add_(1)

    here = _linear()
    return Workload(
        build_model=torch.nn.Identity,
        make_batch=lambda batch_size, device: torch.ones(batch_size, 256),
        loss=lambda model, batch: batch.sum(),
        optimizer=lambda _parameters: torch.optim.SGD(here.parameters(), lr=0.1),
        step=step,
    )


def vacuous():
    return Workload(
        build_model=_linear,
        make_batch=_rows,
        loss=lambda model, batch: model(batch).sum(),
        step=lambda model, optimizer, batch: None,
    )


def ignores_batch_size():
    return Workload(
        build_model=_linear,
        make_batch=lambda batch_size, device: torch.ones(2, 256, device=device),
        loss=lambda model, batch: model(batch).sum(),
    )


def hangs():
    """Waits for ever in its second step, and lets the interpreter's other threads run."""
    losses = []

    def loss(model, batch):
        losses.append(1)
        if len(losses) == 2:
            threading.Event().wait()
        return model(batch).sum()

    return Workload(build_model=_linear, make_batch=_rows, loss=loss)


def stops():
    """Stops its process in its second step."""
    losses = []

    def loss(model, batch):
        losses.append(1)
        if len(losses) == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        return model(batch).sum()

    return Workload(build_model=_linear, make_batch=_rows, loss=loss)


def killed():
    return Workload(
        build_model=_linear,
        make_batch=_rows,
        loss=lambda model, batch: os.kill(os.getpid(), signal.SIGKILL),
    )


def mistaken():
    def loss(model, batch):
        return model(batch) @ batch

    return Workload(build_model=_linear, make_batch=_rows, loss=loss)
