"""Workloads of one convolution with large filters, over frames of one channel.

The setting is that of a question of 2017, "Memory usage of tensorflow conv2d with large filters": 200
frames of 321×481, three filters of 5×5, 7×7 or 135×135, no padding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autofit_workers.workload.workload import Workload

HEIGHT, WIDTH = 321, 481
NUM_FILTERS = 3


def _workload(filter_size: int) -> Workload:
    def build_model() -> nn.Module:
        return nn.Conv2d(1, NUM_FILTERS, filter_size, bias=False)

    return Workload(
        build_model=build_model,
        make_batch=make_frames,
        loss=mean_square,
        optimizer="sgd",
        name=f"big-filter:{filter_size}",
    )


def make_frames(batch_size: int, device: torch.device) -> Tensor:
    """Frames of random numbers, B×1×321×481."""
    return torch.randn(batch_size, 1, HEIGHT, WIDTH, device=device)


def mean_square(model: nn.Module, frames: Tensor) -> Tensor:
    """Mean square of the filters' output, a scalar."""
    response: Tensor = model(frames)
    return response.square().mean()


big_filter_5 = _workload(5)
big_filter_7 = _workload(7)
big_filter_135 = _workload(135)
