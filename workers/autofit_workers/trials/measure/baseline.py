"""Tiny workload that measures the CPU memory which any trial's process takes besides its own workload.

The steps call every library that a step may call (oneDNN, MKL, OpenMP), on tensors so small that
nearly all memory is the process's own: the interpreter, PyTorch, its compiler's front end (which every
optimizer imports), and the libraries' buffers.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from autofit_workers.spec.protocol import LIBRARIES_KIND, WorkloadRef
from autofit_workers.workload.workload import Workload, resolve

_CHANNELS, _SIDE, _CLASSES = 16, 16, 64


def _build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, _CHANNELS, 3, padding=1),
        nn.BatchNorm2d(_CHANNELS),
        nn.ReLU(),
        nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(_CHANNELS * _SIDE * _SIDE // 4, _CLASSES),
    )


def _make_batch(batch_size: int, device: torch.device) -> Tensor:
    return torch.randn(batch_size, 3, _SIDE, _SIDE, device=device)


def _loss(model: nn.Module, images: Tensor) -> Tensor:
    loss: Tensor = model(images).square().mean()
    return loss


workload = Workload(
    build_model=_build_model, make_batch=_make_batch, loss=_loss, optimizer="sgd-momentum", name="baseline"
)


def resolve_measured(ref: WorkloadRef) -> Workload:
    """Loads the workload that a measured trial runs.

    Of a reference to a workload's libraries it is the baseline, in a process that has imported them: a
    trainer's own libraries may take as much memory as PyTorch. The workload's model is built for that without
    memory, as some libraries are imported only then.
    """
    if ref.kind != LIBRARIES_KIND:
        return resolve(ref)
    own = resolve(dataclasses.replace(ref, kind="pickle"))
    with torch.device("meta"):
        own.build_model()
    return workload
