"""Workloads of `host_accuracy.py`, one for each kind of operator that takes memory of its own on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autofit_workers.workload.workload import Workload


def _mean_square(model: nn.Module, batch: Tensor) -> Tensor:
    output: Tensor = model(batch)
    return output.square().mean()


def _of_shape(*shape: int):
    return lambda batch_size, device: torch.randn(batch_size, *shape, device=device)


def _mlp() -> nn.Module:
    width = 2048
    hidden = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(nn.Linear(256, width), *hidden, nn.Linear(width, 10))


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]


def _vgg_like() -> nn.Module:
    return nn.Sequential(
        *_block(3, 32), *_block(32, 32), nn.MaxPool2d(2),
        *_block(32, 64), *_block(64, 100), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1600, 10),
    )  # fmt: skip


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(256, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 1000)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.recurrent(x)[0])
        return output


mlp = Workload(build_model=_mlp, make_batch=_of_shape(256), loss=_mean_square, optimizer="adam")
vgg_like = Workload(
    build_model=_vgg_like, make_batch=_of_shape(3, 64, 64), loss=_mean_square, optimizer="sgd-momentum"
)
transformer = Workload(
    build_model=_transformer, make_batch=_of_shape(128, 256), loss=_mean_square, optimizer="adamw"
)
recurrent = Workload(
    build_model=_Recurrent, make_batch=_of_shape(64, 256), loss=_mean_square, optimizer="adam"
)
