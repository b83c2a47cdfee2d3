from __future__ import annotations

import pytest
import torch
from torch import nn

from autofit_workers.spec.workloads.builtins import BUILTINS
from autofit_workers.workload.workload import Workload, check_batch, check_loss

META = torch.device("meta")

# The published sizes; DAVEnet's are those of its layer shapes, 60.90 MiB for the audio branch.
NUM_PARAMETERS = {
    "davenet": 15_965_570 + 19_434_304,
    "davenet-audio": 15_965_570,
    "davenet-image": 19_434_304,
    "vgg16": 138_357_544,
    "resnet50": 25_557_032,
    "gpt2": 124_439_808,
    # Its paper gives no widths: a look-up, 30 gated layers, 29 shortcuts, 30 skips, two layers of output.
    "wavenet": 256 * 64 + 30 * (2 * 64 + 1) * 128 + 29 * (64 + 1) * 64 + 30 * (64 + 1) * 256 + 2 * 257 * 256,
    "lstm": 66_034_000,
    "big-filter:5": 3 * 5 * 5,
    "big-filter:7": 3 * 7 * 7,
    "big-filter:135": 3 * 135 * 135,
    "conv1x1": 32 * 512,
    "matmul1x1": 32 * 512,
}


def build_on_meta(name: str) -> tuple[Workload, nn.Module]:
    """Builds without memory; a constructor or a step that reads a value fails here."""
    workload = Workload.load(name)
    with META:
        return workload, workload.build_model()


@pytest.mark.parametrize("name", BUILTINS)
def test_parameters_are_as_many_as_published(name: str) -> None:
    _, model = build_on_meta(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == NUM_PARAMETERS[name]


@pytest.mark.parametrize("name", BUILTINS)
@pytest.mark.parametrize("batch_size", [2, 5])
def test_step_runs_on_the_device_it_is_given_and_reaches_every_parameter(name: str, batch_size: int) -> None:
    workload, model = build_on_meta(name)
    batch = workload.make_batch(batch_size, META)
    check_batch(batch, batch_size)
    loss = workload.loss(model, batch)
    check_loss(loss)
    loss.backward()
    assert loss.shape == ()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("name", BUILTINS)
def test_catalogue_says_what_the_workload_says(name: str) -> None:
    builtin, workload = BUILTINS[name], Workload.load(name)
    assert (builtin.name, builtin.optimizer, builtin.name) == (workload.name, workload.optimizer, name)
    assert workload.mode == "train"
    assert builtin.description
    assert builtin.source
    assert builtin.sample
