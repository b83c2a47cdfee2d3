"""Composer's microbatches: predicted, tried apart from the model that trains, the batch of a step kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autofit.errors import UsageError
from autofit_workers.spec.protocol import Evidence
from autofit_workers.workload.libraries.importing import without_missing_operators

# torchvision, which Composer imports where it is installed, may be of another build than PyTorch here.
with without_missing_operators():
    composer = pytest.importorskip("composer", reason="mosaicml is not installed")

from autofit.integrations.composer import AutofitMicrobatches

pytestmark = pytest.mark.filterwarnings("ignore:.*")  # of Composer, about small trainings


class Squares(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 2048

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((32,), place / 2048), torch.full((32,), (place / 2048) ** 2)


class Small(composer.ComposerModel):  # type: ignore[misc, name-defined]
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 32))
        self.losses: list[float] = []
        self.sizes: list[int] = []

    def forward(self, batch: Any) -> torch.Tensor:
        output: torch.Tensor = self.layers(batch[0])
        return output

    def loss(self, outputs: torch.Tensor, batch: Any, *_: Any) -> torch.Tensor:
        loss = functional.mse_loss(outputs, batch[1])
        if self.logger is not None:  # not in the processes that only try sizes
            self.losses.append(loss.item())
            self.sizes.append(len(outputs))
        return loss


def train(*callbacks: Any, batch_size: int = 24, width: int = 64, samples: Any = None, **more: Any) -> Small:
    torch.manual_seed(5)
    model = Small(width)
    loader = torch.utils.data.DataLoader(samples or Squares(), batch_size=batch_size)
    said: dict[str, Any] = {
        "train_dataloader": loader,
        "max_duration": "4ba",
        "device": "cpu",
        "progress_bar": False,
        "seed": 7,
    }
    trainer = composer.Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3),
        callbacks=[*callbacks],
        **{**said, **more},
    )
    trainer.fit()
    trainer.close()
    return model


@pytest.mark.process
def test_the_size_is_tried_and_the_losses_are_those_without_the_callback(state_dir: Path) -> None:
    found = AutofitMicrobatches(gpu_mem="3G")
    model = train(found, device_train_microbatch_size=4)
    assert found.found is not None
    assert found.found.evidence is Evidence.MEASURED_CPU
    assert found.found.num_trials in (1, 2)
    assert (found.found.batch_size, model.sizes) == (24, [24] * 4)
    assert model.losses == train(device_train_microbatch_size=24).losses


@pytest.mark.process
def test_a_batch_that_does_not_fit_at_once_is_split_for_a_named_card(state_dir: Path) -> None:
    found = AutofitMicrobatches(gpu="rtx-3090", margin=0.975)
    model = train(found, batch_size=2048, width=4096, max_duration="1ba")
    assert found.found is not None
    assert found.found.evidence is Evidence.PREDICTED
    size, *others = model.sizes
    assert 1 < size == found.found.batch_size < 2048
    assert {size, *others} == {size}
    assert sum(model.sizes) == 2048


def test_a_step_that_cannot_be_predicted_leaves_the_size_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(map(Squares().__getitem__, range(24)))

    finder = AutofitMicrobatches(gpu="rtx-3090")
    model = train(finder, samples=Stream(), device_train_microbatch_size=6, max_duration="1ba")
    assert finder.found is None
    assert model.sizes == [6] * 4
    assert "the microbatch stays 6, as nothing could be predicted: Stream gives its samples" in caplog.text


def test_a_loader_without_a_batch_size_is_one_sentence() -> None:
    batches = [[torch.ones(4, 32), torch.ones(4, 32)]]
    with pytest.raises(UsageError, match=r"the data loader \(list\) does not say its batch size"):
        train(AutofitMicrobatches(), train_dataloader=batches, device_train_microbatch_size=2)
