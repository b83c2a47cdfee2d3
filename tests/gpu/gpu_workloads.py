"""Workloads for the CUDA probe, loaded by trials' processes, by path."""

from __future__ import annotations

import torch

from workers.workload import Workload

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


def mistaken():
    def loss(model, batch):
        return model(batch) @ batch

    return Workload(build_model=_linear, make_batch=_rows, loss=loss)
