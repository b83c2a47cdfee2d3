"""One step of a live model, measured where it lives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import autofit
from autofit.errors import UsageError
from autofit_workers.spec.protocol import Evidence

MIB = 2**20


def test_the_peak_of_a_step_on_the_cpu_is_that_of_its_tensors():
    model = nn.Linear(1024, 1024, bias=False)  # 4 MiB of weights, and as much of gradients
    batch = torch.randn(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    weight = model.weight.detach().clone()

    def step() -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    peak = autofit.probe_step(step)
    assert peak.evidence is Evidence.MEASURED_CPU
    assert peak.device.kind == "cpu"
    assert peak.peak_reserved_bytes is None
    assert peak.before_bytes >= 12 * MIB  # weights, their copy, the batch
    output_and_gradient = peak.peak_allocated_bytes - peak.before_bytes
    assert output_and_gradient == pytest.approx(8 * MIB, rel=0.05)
    assert torch.equal(model.weight, weight)
    assert model.weight.grad is not None


def test_what_a_step_raises_reaches_its_caller():
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        autofit.probe_step(step)


def test_what_is_no_function_is_refused():
    with pytest.raises(UsageError, match="a function that does one step, not int"):
        autofit.probe_step(3)  # type: ignore[arg-type]
