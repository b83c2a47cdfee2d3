from __future__ import annotations

import pytest
import torch


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="tests/gpu needs a CUDA device: its other files are not collected"
)
def test_pytorch_runs_on_the_gpu():
    ones = torch.ones(4, device="cuda")
    assert ones.sum().item() == 4
