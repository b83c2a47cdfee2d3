"""What a workload's exceptions say to its user."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError, FakeTensorMode
from torch.utils.checkpoint import CheckpointError, checkpoint

from autofit_workers.process.messages import told


def test_a_module_that_is_missing_is_named_with_what_to_do():
    try:
        import nobody_has_this.inside  # noqa: F401
    except ImportError as error:
        said = told(error)
    assert said.kind == "user"
    assert said.message.startswith("ModuleNotFoundError: No module named 'nobody_has_this' (")
    assert said.message.endswith("install nobody_has_this where trials run, or add its folder to PYTHONPATH")


def test_a_name_that_a_module_lacks_is_told_as_it_is():
    try:
        from pathlib import nobody_has_this  # noqa: F401
    except ImportError as error:
        said = told(error)
    assert "install" not in said.message


def test_a_block_that_runs_differently_again_is_told_with_what_to_do():
    dtypes = iter((torch.float32, torch.float64))
    given = torch.ones(2, requires_grad=True)
    output = checkpoint(lambda tensor: tensor.to(next(dtypes)).exp().sum(), given, use_reentrant=False)
    with pytest.raises(CheckpointError) as raised:
        output.backward()
    said = told(raised.value)
    assert said.message.startswith("CheckpointError: ")
    assert said.message.endswith("let both runs make the same tensors, or leave the checkpointing out")


def test_tensors_of_two_devices_are_said_to_stop_a_gpu_too():
    with FakeTensorMode(), pytest.raises(FakeTensorDeviceMismatchError) as raised:
        torch.empty(2) + torch.empty(2, device="cuda")
    assert told(raised.value).message.endswith("PyTorch stops here on a GPU too; bring both to one device")
