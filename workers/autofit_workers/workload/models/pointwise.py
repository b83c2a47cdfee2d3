"""Workloads of a linear map at every step of a sequence: 1×1 convolution and matrix product.

They are the two halves of a comparison of their memory in TensorFlow: sequences of 1000 steps of 32
numbers, mapped to 512. There the convolution goes through an image of one row, and the product through
a copy of the filter for each sample.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit_workers.workload.workload import Workload

NUM_STEPS, WIDTH, OUTPUT_WIDTH = 1000, 32, 512


class Conv1x1(nn.Module):
    """Maps B×1000×32 to B×1000×512 by a convolution over an image of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.filt = _filter()

    def forward(self, sequences: Tensor) -> Tensor:
        rows = sequences.transpose(1, 2).unsqueeze(2)  # channels last, as the sequences lie in memory
        filters = self.filt.t()[:, :, None, None]
        return functional.conv2d(rows, filters).squeeze(2).transpose(1, 2)


class Matmul1x1(nn.Module):
    """Maps B×1000×32 to B×1000×512 by a matrix product with one copy of the filter a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.filt = _filter()

    def forward(self, sequences: Tensor) -> Tensor:
        stacked = torch.stack([self.filt] * len(sequences))
        return torch.matmul(sequences, stacked)


def _filter() -> nn.Parameter:
    return nn.Parameter(torch.rand(WIDTH, OUTPUT_WIDTH) * 2 - 1)


def make_sequences(batch_size: int, device: torch.device) -> Tensor:
    """Sequences of random numbers, B×1000×32."""
    return torch.randn(batch_size, NUM_STEPS, WIDTH, device=device)


def mean_square(model: nn.Module, sequences: Tensor) -> Tensor:
    """Mean square of the model's result, a scalar."""
    result: Tensor = model(sequences)
    return result.square().mean()


conv1x1 = Workload(
    build_model=Conv1x1, make_batch=make_sequences, loss=mean_square, optimizer="sgd", name="conv1x1"
)
matmul1x1 = Workload(
    build_model=Matmul1x1, make_batch=make_sequences, loss=mean_square, optimizer="sgd", name="matmul1x1"
)
