"""The list of a forward pass's tensors: every result once, and whose storage it lies in."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.trace import FORWARD_END, Role, Trace
from autofit_workers.trials.run import run

_SOURCE = """
import torch
from torch import nn
from autofit_workers.workload import Workload


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)
        self.tied = self.layer
        self.register_buffer("shift", torch.ones(8))

    def forward(self, batch):
        rows = self.layer(self.layer(batch)).relu_()
        copied = rows.t().reshape(-1)
        first, second = rows.chunk(2, dim=1)
        return copied.sum() + first.sum() + (second + self.shift[:4]).sum()


def loss(model, batch):
    return nn.MSELoss()(model(batch), torch.zeros((), device=batch.device))


net = Workload(
    build_model=Net, make_batch=lambda batch_size, device: torch.ones(batch_size, 8, device=device), loss=loss
)
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("listed") / "net.py"
    path.write_text(_SOURCE)
    outcome = run(
        TrialSpec(
            workload=WorkloadRef(kind="file", target=f"{path}:net"),
            batch_size=4,
            probe=Probe.PREDICT,
            setup=Setup(mode="infer"),
            with_tensors=True,
        )
    )
    assert outcome.trace_json is not None, outcome.error
    return Trace.from_json(outcome.trace_json)


def test_parameters_buffers_batch_and_results_are_listed_once_each(trace):
    roles = {tensor.name: tensor.role for tensor in trace.tensors}
    assert len(roles) == len(trace.tensors)
    assert roles["layer.weight"] is Role.PARAMETER  # and not as `tied.weight` again
    assert roles["shift"] is Role.BUFFER
    assert roles["input:0"] is Role.INPUT
    assert {name for name, role in roles.items() if role is Role.OUTPUT} == {
        "layer/t:0", "layer/mm:0", "layer/t_1:0", "layer/mm_1:0",
        "t:0", "clone:0", "_unsafe_view:0", "split:0", "split:1", "slice:0",
        "sum:0", "sum_1:0", "sum_2:0", "add:0", "add_1:0", "add_2:0",
    }  # fmt: skip


def test_views_share_a_storage_and_copies_have_their_own(trace):
    storage = {tensor.name: tensor.storage for tensor in trace.tensors}
    assert storage["layer/t:0"] == storage["layer/t_1:0"] == storage["layer.weight"]
    assert storage["split:0"] == storage["split:1"] == storage["t:0"] == storage["layer/mm_1:0"]
    assert storage["slice:0"] == storage["shift"]
    assert storage["clone:0"] == storage["_unsafe_view:0"] != storage["t:0"]
    for tensor in trace.tensors:
        assert tensor.num_bytes <= trace.allocations[tensor.storage].num_bytes


def test_a_trace_up_to_the_model_s_end_is_without_the_loss(trace):
    forward = trace.until(FORWARD_END)
    assert forward.marks[-1].name == FORWARD_END
    assert len(forward.events) == forward.marks[-1].position < len(trace.events)
    made = {forward.allocations[event].operator for event in forward.events if event >= 0}
    assert "aten.mm" in made
    assert "aten.mse_loss" not in made


def test_a_list_changes_nothing_of_the_trace_and_travels_with_it(trace):
    assert Trace.from_json(trace.to_json()) == trace
    without = dataclasses.replace(trace, tensors=())
    assert without.digest != trace.digest
    assert '"tensors"' not in without.to_json()
