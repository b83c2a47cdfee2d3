"""The optimizer of bitsandbytes: its states are those of a real run, and it is refused where it cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from workers.errors import DeviceError
from workers.workload.optimizers import make_optimizer
from workers.workload.step import train_step
from workers.workload.workload import Workload, WorkloadError

SMALL_WORKLOADS = Path(__file__).parent / "small_workloads.py"


def test_states_are_those_of_a_real_run(steps_of):
    pytest.importorskip("bitsandbytes")
    workload = Workload.load(f"{SMALL_WORKLOADS}:wide")
    model = workload.build_model()
    real = make_optimizer("adamw8bit", model.parameters())
    train_step(workload, model, real, workload.make_batch(4, torch.device("cpu")))
    tensors = [value for state in real.state.values() for value in state.values() if torch.is_tensor(value)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.nbytes for tensor in tensors}
    found = steps_of("wide", optimizer="adamw8bit").live_bytes("optimizer_state")
    assert found == sum(storages.values())
    # Two bytes, and two scales for 256 elements; fewer than 4096 are kept in 32 bits, and the maps once.
    assert found == 2 * (6400 + 25 * 4) + 8 * 100 + 2 * 256 * 4


def test_it_has_an_implementation_of_its_own():
    with pytest.raises(WorkloadError, match="leave out optimizer_impl"):
        make_optimizer("adamw8bit", [torch.nn.Parameter(torch.ones(1))], "foreach")


def test_where_its_library_is_not_installed_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(DeviceError, match="pip install bitsandbytes"):
        make_optimizer("adamw8bit", [torch.nn.Parameter(torch.ones(1))])
