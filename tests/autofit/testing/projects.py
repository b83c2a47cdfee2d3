"""Projects of users with tests of memory, and pytest run in them."""

from __future__ import annotations

import pytest

PLUGIN = ("-p", "autofit.testing.plugin")

# A step whose activations decide its peak: 64 MiB for each of four layers at batch 16384.
WORKLOAD = """
import autofit
import pytest
import torch
from torch import nn

WIDTH = 1024

class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x

def build():
    return Net(4)

def batch(batch_size, device):
    return torch.randn(batch_size, WIDTH, device=device)

def loss(model, batch):
    return model(batch).square().mean()

def made(depth=4):
    return autofit.Workload(
        build_model=lambda: Net(depth), make_batch=batch, loss=loss, optimizer="adam", name="net"
    )
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the pytest of a test load this plugin by its name alone, whatever is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
