"""The batch of a trainer where the prediction is far off: a failure is followed by a size that fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from autofit.integrations.finding import find_batch
from autofit_workers.spec.protocol import Evidence
from autofit_workers.workload.workload import Workload

MIB = 2**20


@pytest.mark.process
def test_where_no_size_fits_half_of_the_smallest_is_tried(state_dir: Path) -> None:
    held: list[bytes] = []

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(1))

        def forward(self, samples: torch.Tensor) -> torch.Tensor:
            return (samples * self.factor).square()

    def loss(model: nn.Module, samples: torch.Tensor) -> torch.Tensor:
        if not held:
            held.append(b"x" * (240 * MIB))  # no tensor, so that no prediction knows of it
        found: torch.Tensor = model(samples).mean()
        return found

    workload = Workload(
        build_model=Scale,
        make_batch=lambda size, device: torch.ones(size, MIB, device=device),
        loss=loss,
        optimizer="sgd",
        name="scale",
    )
    found = find_batch(workload, device="cpu", gpu_mem="1G", max_batch=256, max_trials=1)
    assert found.evidence is Evidence.MEASURED_CPU
    assert found.num_trials == 2
    assert 8 <= found.batch_size <= 40
