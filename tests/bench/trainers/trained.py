"""Three small trainings, of images, texts and rows of numbers, as users of trainers write them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = dict[str, Tensor]

NUM_SAMPLES = 65_536
_NUM_WORDS = 8192
_NUM_COLUMNS = 32_768


class Images(nn.Module):
    """Convolutional network with residual blocks, whose activations take the memory."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
            )
            for _ in range(4)
        )  # fmt: skip
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: Tensor, labels: Tensor) -> Batch:
        found = self.stem(inputs)
        for block in self.blocks:
            found = functional.relu(found + block(found))
        return {"loss": functional.cross_entropy(self.head(found.mean(dim=(2, 3))), labels)}


class Texts(nn.Module):
    """Small language model, whose scores of all words take the memory."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(_NUM_WORDS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, _NUM_WORDS)

    def forward(self, inputs: Tensor, labels: Tensor) -> Batch:
        mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        scores = self.head(self.layers(self.words(inputs), mask=mask, is_causal=True))
        return {"loss": functional.cross_entropy(scores.flatten(0, 1), labels.flatten())}


class Rows(nn.Module):
    """Classifier of long rows of numbers, whose samples are large."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(_NUM_COLUMNS), nn.GELU(), nn.Linear(_NUM_COLUMNS, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def forward(self, inputs: Tensor, labels: Tensor) -> Batch:
        return {"loss": functional.cross_entropy(self.layers(inputs), labels)}


class Samples(torch.utils.data.Dataset[Batch]):
    """Data set of made-up samples.

    Args:
        make: makes the sample at a place.
    """

    def __init__(self, make: Callable[[torch.Generator], Batch]) -> None:
        self._make = make

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, place: int) -> Batch:
        return self._make(torch.Generator().manual_seed(place))


def _image(generator: torch.Generator) -> Batch:
    return {"inputs": torch.rand(3, 64, 64, generator=generator), "labels": torch.tensor(3)}


def _text(generator: torch.Generator) -> Batch:
    tokens = torch.randint(_NUM_WORDS, (129,), generator=generator)
    return {"inputs": tokens[:-1], "labels": tokens[1:]}


def _row(generator: torch.Generator) -> Batch:
    return {"inputs": torch.rand(_NUM_COLUMNS, generator=generator), "labels": torch.tensor(3)}


@dataclass(frozen=True)
class Training:
    """Model and data set of a training."""

    build: Callable[[], nn.Module]
    samples: Samples

    def batch(self, batch_size: int, device: torch.device) -> Batch:
        batches: Any = torch.utils.data.default_collate([self.samples[n] for n in range(batch_size)])
        return {name: tensor.to(device) for name, tensor in batches.items()}


TRAININGS = {
    "images": Training(Images, Samples(_image)),
    "texts": Training(Texts, Samples(_text)),
    "rows": Training(Rows, Samples(_row)),
}


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    """Optimizer of every training here."""
    return torch.optim.AdamW(parameters, lr=1e-4)
