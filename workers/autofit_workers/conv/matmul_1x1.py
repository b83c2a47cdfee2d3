"""Convolution by 1×1 filters as a matrix product, without im2col columns."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from autofit_workers.conv.geometry import Geometry, box, with_zeros


class Matmul1x1:
    """Computes convolutions with 1×1 filters as matrix products; stride or padding copies the input."""

    def forward(self, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        output = image.new_empty(
            (len(image), len(weight), *geometry.output(tuple(image.shape[2:]), tuple(weight.shape[2:])))
        )
        matrix = _matrices(weight, geometry)
        for sample, into in zip(_points(image, geometry), _flat(output, geometry), strict=True):
            torch.bmm(matrix, sample, out=into)
        return output

    def grad_input(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Gradient of a 1×1 convolution's input, by matrix products of one sample after the other."""
        matrix = _matrices(weight, geometry).mT
        if _is_dense(geometry):
            result = grad.new_empty(image.shape)
            for of_sample, into in zip(_flat(grad, geometry), _flat(result, geometry), strict=True):
                torch.bmm(matrix, of_sample, out=into)
            return result
        result = grad.new_zeros(image.shape)
        points = grad.new_empty((image.shape[1], *grad.shape[2:]))
        for of_sample, into in zip(_flat(grad, geometry), result, strict=True):
            torch.bmm(matrix, of_sample, out=points.view(geometry.groups, -1, of_sample.shape[-1]))
            _put(into, points, geometry)
        return result

    def grad_weight(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        result = weight.new_zeros(weight.shape)
        into = _matrices(result, geometry)
        for sample, of_sample in zip(_points(image, geometry), _flat(grad, geometry), strict=True):
            into.baddbmm_(of_sample, sample.mT)
        return result


def _is_dense(geometry: Geometry) -> bool:
    return set(geometry.stride) == {1} and not geometry.is_padded


def _matrices(weight: Tensor, geometry: Geometry) -> Tensor:
    return weight.view(geometry.groups, len(weight) // geometry.groups, -1)


def _flat(tensor: Tensor, geometry: Geometry) -> Tensor:
    """View of an image N×channels×spatial as N×groups×(channels of a group)×pixels."""
    return tensor.view(len(tensor), geometry.groups, -1, math.prod(tensor.shape[2:]))


def _points(image: Tensor, geometry: Geometry) -> Tensor:
    """Pixels of an image that 1×1 filters read, as N×groups×(channels of a group)×pixels."""
    if _is_dense(geometry):
        return _flat(image.contiguous(), geometry)
    padded = with_zeros(image, geometry.padding)
    seen = padded[box(slice(None, None, step) for step in geometry.stride)]
    return _flat(seen.contiguous(), geometry)


def _put(into: Tensor, points: Tensor, geometry: Geometry) -> None:
    """Writes values to the pixels of one image that 1×1 filters read, given their stride and padding.

    Args:
        into: image that is written to, channels×spatial.
        points: values, channels×(output pixels in each dimension); those for the padding are dropped.
        geometry: stride and padding of the convolution.
    """
    targets, taken = [], []
    for size, num_points, step, padding in zip(
        into.shape[1:], points.shape[1:], geometry.stride, geometry.padding, strict=True
    ):
        first = -(-padding // step)
        last = min(num_points, (size - 1 + padding) // step + 1)
        taken.append(slice(first, max(first, last)))
        targets.append(slice(first * step - padding, max(0, (last - 1) * step - padding + 1), step))
    into[box(targets)] = points[box(taken)]
