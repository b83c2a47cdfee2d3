"""Geometry of a convolution: stride, padding, dilation, groups, and the shapes that follow from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Stride, padding, dilation and groups of a convolution, with a number for each spatial dimension.

    Attributes:
        padding: number of zeros on each side.
        groups: number of groups of channels, which are convolved separately.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def num_dimensions(self) -> int:
        return len(self.stride)

    @property
    def is_padded(self) -> bool:
        return any(self.padding)

    def extents(self, filter_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Size of a filter in each dimension, including the gaps of its dilation."""
        return tuple(d * (size - 1) + 1 for size, d in zip(filter_shape, self.dilation, strict=True))

    def padded(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Spatial shape of an input after padding."""
        return tuple(size + 2 * p for size, p in zip(input_shape, self.padding, strict=True))

    def output(self, input_shape: tuple[int, ...], filter_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Spatial shape of the convolution's output."""
        reaches = zip(self.padded(input_shape), self.extents(filter_shape), self.stride, strict=True)
        return tuple((size - extent) // stride + 1 for size, extent, stride in reaches)


def with_zeros(image: torch.Tensor, padding: tuple[int, ...]) -> torch.Tensor:
    """Copy of an image with zeros on both sides of its spatial dimensions; the image itself without padding.

    Args:
        image: tensor whose last dimensions are spatial.
        padding: number of zeros on each side, for each spatial dimension.
    """
    if not any(padding):
        return image
    both_sides = [p for p in reversed(padding) for _ in range(2)]
    return torch.nn.functional.pad(image, both_sides)


def box(slices: Iterable[slice]) -> Any:
    """Index that applies `slices` to the last dimensions of a tensor."""
    return (..., *slices)
