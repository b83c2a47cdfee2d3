"""Im2col convolution: a matrix product of the weight with a column of input pixels for each output pixel.

`Im2col` copies the columns of the whole batch, `ChunkedIm2col` those of a few output pixels of one image at a
time, into one buffer that is reused.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofit_workers.conv.geometry import Geometry, box, with_zeros
from autofit_workers.conv.tiles import Tile, runs

_Span = tuple[int, int, int]


class Im2col:
    """Computes convolutions as products of the weight with the im2col columns of the whole batch."""

    def forward(self, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        output = image.new_empty((len(image), len(weight), *_output(image, weight, geometry)))
        columns = _columns(image, weight, geometry)
        matrix = _matrices(weight, geometry.groups)
        for sample, into in zip(columns, output, strict=True):
            torch.bmm(matrix, sample, out=into.view(geometry.groups, -1, sample.shape[-1]))
        return output

    def grad_input(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        result = grad.new_zeros(image.shape)
        matrix = _matrices(weight, geometry.groups).mT
        num_pixels = math.prod(grad.shape[2:])
        columns = grad.new_empty((len(grad), geometry.groups, matrix.shape[1], num_pixels))
        for of_sample, into in zip(grad, columns, strict=True):
            torch.bmm(matrix, of_sample.view(geometry.groups, -1, num_pixels), out=into)
        places = columns.view(len(grad), image.shape[1], *weight.shape[2:], *grad.shape[2:])
        _add_places(result, places, geometry)
        return result

    def grad_weight(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        result = weight.new_zeros(weight.shape)
        columns = _columns(image, weight, geometry)
        into = _matrices(result, geometry.groups)
        for sample, of_sample in zip(columns, grad, strict=True):
            into.baddbmm_(of_sample.view(geometry.groups, -1, sample.shape[-1]), sample.mT)
        return result


@dataclass(frozen=True, slots=True)
class ChunkedIm2col:
    """Computes convolutions as products of the weight with im2col columns of a few output pixels at a time.

    Attributes:
        num_pixels: most output pixels of an image whose columns are in memory at a time.
    """

    num_pixels: int

    def forward(self, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        output = image.new_empty((len(image), len(weight), *_output(image, weight, geometry)))
        self._multiply(_matrices(weight, geometry.groups), image, tuple(weight.shape[2:]), geometry, output)
        return output

    def grad_input(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Gradient of the input: convolution of the output's gradient with the mirrored filters.

        For strides over 1, zeros are inserted into the output's gradient first.
        """
        result = grad.new_empty(image.shape)
        filter_shape = tuple(weight.shape[2:])
        by_group = weight.view(geometry.groups, -1, *weight.shape[1:]).transpose(1, 2)
        matrix = by_group.flip(tuple(range(3, by_group.dim()))).reshape(*by_group.shape[:2], -1)
        dense = Geometry(
            stride=(1,) * geometry.num_dimensions,
            padding=(0,) * geometry.num_dimensions,
            dilation=geometry.dilation,
            groups=geometry.groups,
        )
        for of_sample, into in zip(grad, result, strict=True):
            spread = _spread(of_sample, tuple(image.shape[2:]), filter_shape, geometry)
            self._multiply(matrix, spread[None], filter_shape, dense, into[None])
            del spread
        return result

    def grad_weight(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Gradient of a convolution's weight, summed over chunks of im2col columns."""
        result = weight.new_zeros(weight.shape)
        filter_shape, spatial = tuple(weight.shape[2:]), tuple(grad.shape[2:])
        buffer = self._buffer(image, filter_shape, spatial)
        into = _matrices(result, geometry.groups)
        for number, of_sample in enumerate(grad):
            places = _places(with_zeros(image[number], geometry.padding), filter_shape, geometry)
            flat = of_sample.view(geometry.groups, -1, math.prod(spatial))
            for tile in runs(spatial, self.num_pixels):
                columns = _filled(buffer, places, tile, geometry.groups)
                into.baddbmm_(flat[:, :, tile.start : tile.stop], columns.mT)
            del places  # frees this padded sample before the next is made
        return result

    def _multiply(
        self, matrix: Tensor, image: Tensor, filter_shape: tuple[int, ...], geometry: Geometry, output: Tensor
    ) -> None:
        """Fills `output` with the product of each group's `matrix` and the im2col columns of each image."""
        spatial = tuple(output.shape[2:])
        buffer = self._buffer(image, filter_shape, spatial)
        for sample, into in zip(image, output, strict=True):
            places = _places(with_zeros(sample, geometry.padding), filter_shape, geometry)
            flat = into.view(geometry.groups, -1, math.prod(spatial))
            for tile in runs(spatial, self.num_pixels):
                columns = _filled(buffer, places, tile, geometry.groups)
                for group in range(geometry.groups):
                    torch.mm(matrix[group], columns[group], out=flat[group, :, tile.start : tile.stop])
            del places

    def _buffer(self, image: Tensor, filter_shape: tuple[int, ...], spatial: tuple[int, ...]) -> Tensor:
        num_pixels = min(self.num_pixels, math.prod(spatial))
        return image.new_empty(image.shape[1] * math.prod(filter_shape) * num_pixels)


def _output(image: Tensor, weight: Tensor, geometry: Geometry) -> tuple[int, ...]:
    return geometry.output(tuple(image.shape[2:]), tuple(weight.shape[2:]))


def _matrices(weight: Tensor, groups: int) -> Tensor:
    """View of a weight as a matrix per group: groups × output channels × (input channels · filter points)."""
    return weight.view(groups, len(weight) // groups, -1)


def _places(image: Tensor, filter_shape: tuple[int, ...], geometry: Geometry) -> Tensor:
    """View of a padded image, …×C×spatial, that lists for each output pixel the input pixels of its filter.

    Its shape is …×C×filter×output, which are the columns of im2col before they are flattened.
    """
    num = geometry.num_dimensions
    strides = image.stride()[-num:]
    return image.as_strided(
        (
            *image.shape[:-num],
            *filter_shape,
            *(
                (size - extent) // stride + 1
                for size, extent, stride in zip(
                    image.shape[-num:], geometry.extents(filter_shape), geometry.stride, strict=True
                )
            ),
        ),
        (
            *image.stride()[:-num],
            *(dilation * stride for dilation, stride in zip(geometry.dilation, strides, strict=True)),
            *(step * stride for step, stride in zip(geometry.stride, strides, strict=True)),
        ),
        image.storage_offset(),
    )


def _columns(image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Im2col columns of a batch: N × groups × (channels of a group · filter points) × output pixels."""
    places = _places(with_zeros(image, geometry.padding), tuple(weight.shape[2:]), geometry)
    num_pixels = math.prod(places.shape[-geometry.num_dimensions :])
    return places.clone(memory_format=torch.contiguous_format).view(
        len(image), geometry.groups, -1, num_pixels
    )


def _filled(buffer: Tensor, places: Tensor, tile: Tile, groups: int) -> Tensor:
    """Im2col columns of the output pixels in `tile`, copied to `buffer`.

    Args:
        buffer: memory for the columns.
        places: view of one padded image, from `_places`.
        tile: box of output pixels.
        groups: number of groups of channels.

    Returns:
        The columns, groups × (channels of a group · filter points) × output pixels of the tile.
    """
    part = places[box(tile.slices)]
    columns = buffer[: part.numel()]
    columns.view(part.shape).copy_(part)
    return columns.view(groups, -1, tile.stop - tile.start)


def _add_places(result: Tensor, places: Tensor, geometry: Geometry) -> None:
    """Adds gradients of im2col columns to the gradients of the input pixels that the columns came from.

    Args:
        result: gradient of the input, N×C×spatial, which is added to.
        places: gradients of the columns, N×C×filter×output.
        geometry: stride and dilation of the convolution.
    """
    num = geometry.num_dimensions
    outputs = places.shape[-num:]
    for offsets in itertools.product(*(range(size) for size in places.shape[2 : 2 + num])):
        spans = [
            _overlap(size, num_outputs, step, offset * dilation - padding)
            for size, num_outputs, step, offset, dilation, padding in zip(
                result.shape[2:],
                outputs,
                geometry.stride,
                offsets,
                geometry.dilation,
                geometry.padding,
                strict=True,
            )
        ]
        if all(first < last for _, first, last in spans):
            from_outputs = tuple(slice(first, last) for _, first, last in spans)
            seen: Any = (slice(None), slice(None), *offsets, *from_outputs)
            result[box(_points(spans, geometry))] += places[seen]


def _spread(
    grad: Tensor, input_shape: tuple[int, ...], filter_shape: tuple[int, ...], geometry: Geometry
) -> Tensor:
    """Gradient of the output with zeros inserted for the stride, and added around it.

    A convolution of the result with stride 1 and the mirrored filters is the gradient of the input.

    Args:
        grad: gradient of the output of one image, K×output.
        input_shape, filter_shape: spatial shapes of the input and the filter.
        geometry: stride, padding and dilation of the convolution.
    """
    extents = geometry.extents(filter_shape)
    shape = [size + extent - 1 for size, extent in zip(input_shape, extents, strict=True)]
    spread = grad.new_zeros((len(grad), *shape))
    spans = [
        _overlap(size, num_outputs, step, extent - 1 - padding)
        for size, num_outputs, step, extent, padding in zip(
            shape, grad.shape[1:], geometry.stride, extents, geometry.padding, strict=True
        )
    ]
    if all(first < last for _, first, last in spans):
        from_outputs = tuple(slice(first, last) for _, first, last in spans)
        spread[box(_points(spans, geometry))] = grad[box(from_outputs)]
    return spread


def _points(spans: list[_Span], geometry: Geometry) -> tuple[slice, ...]:
    """Slices of the input points, one for each dimension, that the outputs in `spans` read.

    Args:
        spans: range for each dimension, from `_overlap`.
        geometry: its stride is the distance between points.
    """
    return tuple(
        slice(start, start + (last - first - 1) * step + 1, step)
        for (start, first, last), step in zip(spans, geometry.stride, strict=True)
    )


def _overlap(size: int, num_outputs: int, step: int, offset: int) -> _Span:
    """Range of outputs, in one dimension, whose input point lies within the input.

    Output number `n` reads the point `offset + step · n`.

    Args:
        size: number of points of the input.
        num_outputs: number of outputs.
        step, offset: see above.

    Returns:
        The first point that is read, the first output that reads one, and the last such output + 1.
    """
    first = max(0, -(offset // step))
    last = min(num_outputs, (size - 1 - offset) // step + 1)
    return offset + first * step, first, last
