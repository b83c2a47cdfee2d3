"""Lightning's batch size: predicted, tried apart from the module that trains, and one for all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from autofit.errors import UsageError
from autofit_workers.spec.protocol import Evidence
from tests.autofit.integrations.lightning_training import Small, pl, small, trainer

from autofit.integrations.lightning import (  # isort: skip - lightning_training.py imports Lightning first
    AutofitBatchSizeFinder,
    parallel_of,
    scale_batch_size,
)

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.filterwarnings("ignore:.*")  # of Lightning, about small trainings


def finder(**options: Any) -> AutofitBatchSizeFinder:
    return AutofitBatchSizeFinder(**{"gpu_mem": "3G", "max_val": 16, **options})


@pytest.mark.process
def test_the_size_is_tried_and_the_losses_are_those_of_a_training_with_that_size(
    tmp_path: Path, state_dir: Path
) -> None:
    found, module = finder(), small()
    trainer(tmp_path, found).fit(module)
    assert (found.optimal_batch_size, module.batch_size) == (16, 16)
    assert found.found is not None
    assert found.found.evidence is Evidence.MEASURED_CPU
    assert found.found.num_trials in (1, 2)
    alone = small(batch_size=16)
    trainer(tmp_path).fit(alone)
    assert module.losses == alone.losses
    assert len(alone.losses) == 4


@pytest.mark.process
def test_in_the_place_of_the_tuner_it_trains_nothing_and_for_a_named_card_it_predicts(
    tmp_path: Path, state_dir: Path
) -> None:
    module = small()
    weights = [each.clone() for each in module.parameters()]
    size = scale_batch_size(trainer(tmp_path), module, gpu="rtx-3090", max_val=25, mode="power", init_val=3)
    assert (size, module.batch_size, module.losses) == (24, 24, [])
    assert all(map(torch.equal, module.parameters(), weights))


@pytest.mark.process
def test_two_ranks_get_one_answer(tmp_path: Path) -> None:
    program = "tests.autofit.integrations.lightning_training"
    environment = {**os.environ, "AUTOFIT_STATE_DIR": str(tmp_path / "state"), "PYTHONWARNINGS": "ignore"}
    subprocess.run(
        [sys.executable, "-m", program, str(tmp_path)],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        timeout=280,
    )
    told = [(tmp_path / f"rank{rank}").read_text() for rank in range(2)]
    assert told == ["16 16 predicted 4", "16 16 predicted 4"]


class ByHand(Small):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        optimizer.step()


def test_a_module_that_is_not_predicted_is_searched_by_lightning_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = ByHand()
    found = finder(mode="power", max_trials=2)
    trainer(tmp_path, found).fit(module)
    assert found.found is None
    assert module.batch_size == found.optimal_batch_size
    assert "Lightning's own search tries sizes on the module itself, as only a module with" in caplog.text


class WithoutSize(Small):
    def __init__(self) -> None:
        super().__init__()
        del self.batch_size


def test_what_it_cannot_do_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="have an attribute 'batch_size'"):
        trainer(tmp_path, finder()).fit(WithoutSize())
    with pytest.raises(UsageError, match="a data loader was given to fit"):
        trainer(tmp_path, finder()).fit(small(), small().train_dataloader())
    with pytest.raises(UsageError, match="the module is compiled already"):
        trainer(tmp_path, finder()).fit(torch.compile(small()))
    with pytest.raises(UsageError, match="mode must be one of power, binsearch; got 'linear'"):
        finder(mode="linear")


@pytest.mark.parametrize(("strategy", "kind"), [("auto", ""), ("ddp", "ddp"), ("ddp_spawn", "ddp")])
def test_strategies_are_followed_by_name(tmp_path: Path, strategy: str, kind: str) -> None:
    assert parallel_of(trainer(tmp_path, strategy=strategy, devices=1)) == kind


def test_fsdp_is_followed_and_another_strategy_is_refused() -> None:
    fsdp = SimpleNamespace(strategy=pl.strategies.FSDPStrategy())  # a Trainer wants a card for it
    assert parallel_of(fsdp) == "fsdp"
    with pytest.raises(UsageError, match="the strategy Linear is not followed"):
        parallel_of(SimpleNamespace(strategy=nn.Linear(1, 1)))


def test_it_is_a_finder_of_lightnings_own_class() -> None:
    assert isinstance(finder(), pl.callbacks.BatchSizeFinder)
