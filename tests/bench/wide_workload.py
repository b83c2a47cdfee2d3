"""A workload to try the benches of measured answers with: 64 MiB a sample, and next to no arithmetic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autofit_workers.workload.workload import Workload


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.factor).square()


def _samples(batch_size: int, device: torch.device) -> Tensor:
    return torch.ones(batch_size, 2**22, device=device)


def _mean(model: nn.Module, samples: Tensor) -> Tensor:
    output: Tensor = model(samples)
    return output.mean()


wide = Workload(build_model=_Scale, make_batch=_samples, loss=_mean, optimizer="adam")
