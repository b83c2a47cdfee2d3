"""A training loop whose peaks are noted, which runs as it would without."""

from __future__ import annotations

import json
import os
import random

import psutil
import pytest
import torch
from torch import nn

import autofit
from autofit.errors import StorageError, UsageError
from autofit.questions.real_runs.observed_run import observed_run_in
from autofit_workers.spec.protocol import Evidence

MIB = 2**20


def losses(steps: int, file=None) -> list[float]:
    """Losses of a loop with dropout, with observing if a file is named."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    seen = []

    def train() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 64)).square().mean()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())

    if file is None:
        train()
    else:
        with autofit.observed(model, optimizer, file=file, batch_size=8):
            train()
        assert not optimizer._optimizer_step_post_hooks
    return seen


def test_the_loop_is_the_same_with_and_without(tmp_path):
    losses(1)  # PyTorch's first step sets a variable of its own
    before = random.getstate(), torch.is_grad_enabled(), dict(os.environ)
    assert losses(5, tmp_path / "run.json") == losses(5)
    assert before == (random.getstate(), torch.is_grad_enabled(), dict(os.environ))


def test_the_file_tells_steps_device_and_the_resident_set_on_the_cpu(tmp_path):
    file = tmp_path / "run.json"
    losses(5, file)
    run = observed_run_in(file)
    assert (run.num_steps, run.num_ranks, run.batch_size, run.mode) == (5, 1, 8, "train")
    assert (run.device.kind, run.evidence, run.torch) == ("cpu", Evidence.MEASURED_CPU, torch.__version__)
    assert run.before.resident_bytes > 50 * MIB
    assert run.peaks.reserved_bytes is None
    assert json.loads(file.read_text())["schema"] == "autofit.observed-run/1"


def test_memory_that_the_loop_takes_is_in_its_peak():
    model = nn.Linear(4, 4)
    with autofit.observed(model) as observer:
        before = observer.run.before.resident_bytes
        given_back = max(0, before - psutil.Process().memory_info().rss)  # by other tests of this process
        taken = torch.ones((given_back + 256 * MIB) // 4)
        observer.note(of_evaluation=True)
    assert observer.run.mode == "infer"
    assert observer.run.num_steps is None
    assert taken.numel()
    assert observer.run.peaks.resident_bytes >= before + 100 * MIB
    assert observer.run.evaluation == observer.run.peaks


def test_what_the_loop_raises_reaches_its_caller_and_nothing_is_written(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(KeyError, match="mine"),
        autofit.observed(model, optimizer, file=tmp_path / "run.json"),
    ):
        raise KeyError("mine")
    assert list(tmp_path.iterdir()) == []
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("arguments", "named", "says"),
    [
        ((3,), {}, "int is no model"),
        ((nn.Linear(2, 2), "adam"), {}, "str is no optimizer of PyTorch"),
        ((nn.Linear(2, 2),), {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ((nn.Linear(2, 2),), {"precison": "bf16"}, "observed.. takes no precison"),
        ((nn.Linear(2, 2),), {"precision": "fp12"}, "fp12"),
        ((nn.Linear(2, 2, device="meta"),), {}, "the model is on meta"),
    ],
)
def test_what_is_wrong_with_a_call_is_one_sentence(arguments, named, says):
    with pytest.raises(UsageError, match=says) as raised, autofit.observed(*arguments, **named):
        pytest.fail("it began")
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    with pytest.raises(StorageError), autofit.observed(nn.Linear(2, 2), file=tmp_path / "no" / "run.json"):
        pass
