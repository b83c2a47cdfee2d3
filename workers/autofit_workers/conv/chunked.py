"""Chunked convolution: the backend's own convolution on a few samples at a time, for a small workspace.

Source: Oyama, Ben-Nun, Hoefler and Matsuoka, "Accelerating deep learning frameworks with
micro-batches", 2018.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofit_workers.conv.geometry import Geometry

aten: Any = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Chunked:
    """Computes a convolution by PyTorch's own kernels, on a few samples of the batch at a time.

    Attributes:
        num_samples: number of samples at a time; the last time there may be fewer.
    """

    num_samples: int

    def forward(self, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        spatial = geometry.output(tuple(image.shape[2:]), tuple(weight.shape[2:]))
        output = image.new_empty((len(image), len(weight), *spatial))
        for part in self._parts(len(image)):
            output[part] = aten.convolution(image[part], weight, None, *_options(geometry))
        return output

    def grad_input(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        result = grad.new_empty(image.shape)
        for part in self._parts(len(image)):
            result[part], _, _ = aten.convolution_backward(
                grad[part], image[part], weight, None, *_options(geometry), [True, False, False]
            )
        return result

    def grad_weight(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        result = weight.new_zeros(weight.shape)
        for part in self._parts(len(image)):
            _, of_part, _ = aten.convolution_backward(
                grad[part], image[part], weight, None, *_options(geometry), [False, True, False]
            )
            result += of_part
        return result

    def _parts(self, num_samples: int) -> Iterator[slice]:
        for first in range(0, num_samples, self.num_samples):
            yield slice(first, first + self.num_samples)


def _options(geometry: Geometry) -> tuple[Any, ...]:
    """Arguments of ATen's convolution operators after the tensors: stride, padding and so on."""
    none = [0] * geometry.num_dimensions
    return geometry.stride, geometry.padding, geometry.dilation, False, none, geometry.groups
