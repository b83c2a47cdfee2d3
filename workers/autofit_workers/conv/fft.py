"""FFT convolution: computes a convolution as a product of Fourier spectra.

Large outputs are computed in tiles, for the whole batch at a time; the input of a tile has a margin as wide
as the filter.

Source: overlap-save and overlap-add; the three passes as in Mathieu, Henaff and LeCun, "Fast
training of convolutional networks through FFTs", 2013.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autofit_workers.conv.geometry import Geometry, box
from autofit_workers.spec.conv_algorithms.spectra import Tiling, tiling


class Fft:
    """Computes convolutions by real Fourier transforms of tiles, each padded with zeros."""

    def forward(self, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Output of a convolution, computed tile by tile as products of spectra."""
        work = _Work(image, weight, geometry)
        output = image.new_empty((len(image), len(weight), *work.outputs))
        filters = work.spectra(work.spaced_filters(weight)).conj_physical_()
        for corner in work.tiling.corners:
            images = work.spectra(work.window(image, corner))
            products = images.new_zeros((len(image), len(weight), *images.shape[2:]))
            for channel in range(weight.shape[1]):
                work.grouped(products).addcmul_(
                    work.grouped(images)[:, :, channel, None], work.filter_groups(filters)[:, :, channel]
                )
            del images
            points = work.back(products)
            del products
            into, taken = work.outputs_of(corner)
            output[box(into)] = points[box(taken)]
            del points  # frees this tile before the next tile's spectra are made
        return output

    def grad_input(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Gradient of a convolution's input, computed tile by tile as products of spectra."""
        work = _Work(image, weight, geometry)
        result = grad.new_zeros(image.shape)
        filters = work.spectra(work.spaced_filters(weight))
        for corner in work.tiling.corners:
            grads = work.spectra(work.grad_window(grad, corner))
            products = grads.new_zeros((*image.shape[:2], *grads.shape[2:]))
            for channel in range(len(weight) // geometry.groups):
                work.grouped(products).addcmul_(
                    work.grouped(grads)[:, :, channel, None], work.filter_groups(filters)[:, channel]
                )
            del grads
            points = work.back(products)
            del products
            into, taken = work.overlap(corner)
            result[box(into)] += points[box(taken)]
            del points
        return result

    def grad_weight(self, grad: Tensor, image: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """Gradient of a convolution's weight, summed over tiles of products of spectra."""
        work = _Work(image, weight, geometry)
        result = weight.new_empty(weight.shape)
        sums: Tensor | None = None
        for corner in work.tiling.corners:
            images = work.spectra(work.window(image, corner))
            grads = work.spectra(work.grad_window(grad, corner)).conj_physical_()
            if sums is None:
                sums = images.new_zeros((*weight.shape[:2], *images.shape[2:]))
            for number in range(len(images)):
                work.filter_groups(sums).addcmul_(
                    work.grouped(images)[number, :, None], work.grouped(grads)[number, :, :, None]
                )
            del images, grads
        assert sums is not None
        taken = (
            slice(0, extent, dilation)
            for extent, dilation in zip(work.extents, geometry.dilation, strict=True)
        )
        result.copy_(work.back(sums)[box(taken)])
        return result


class _Work:
    """Tiles of one convolution that is computed by FFTs, with methods that copy data into and out of tiles.

    A tile is a box of output pixels, as if the convolution had stride 1; a larger stride keeps only some of
    them. A tile is given by its first pixel, `corner`.
    """

    def __init__(self, image: Tensor, weight: Tensor, geometry: Geometry) -> None:
        input_shape, filter_shape = tuple(image.shape[2:]), tuple(weight.shape[2:])
        self._geometry = geometry
        self._sizes = input_shape
        self.outputs = geometry.output(input_shape, filter_shape)
        self.extents = geometry.extents(filter_shape)
        self.tiling: Tiling = tiling(geometry.padded(input_shape), self.extents, geometry.stride)
        self._dimensions = tuple(range(-geometry.num_dimensions, 0))

    def spectra(self, points: Tensor) -> Tensor:
        spectra: Tensor = torch.fft.rfftn(points, dim=self._dimensions)
        return spectra

    def back(self, spectra: Tensor) -> Tensor:
        points: Tensor = torch.fft.irfftn(spectra, s=self.tiling.lengths, dim=self._dimensions)
        return points

    def grouped(self, spectra: Tensor) -> Tensor:
        """View of channels as groups: spectra N×channels×… become N×groups×(channels of a group)×…."""
        return spectra.view(len(spectra), self._geometry.groups, -1, *spectra.shape[2:])

    def filter_groups(self, spectra: Tensor) -> Tensor:
        """View of a weight's spectra by groups: K×C×… becomes groups×(K of a group)×C×….

        K is the number of output channels, C that of the input channels of a group.
        """
        return spectra.view(self._geometry.groups, -1, *spectra.shape[1:])

    def spaced_filters(self, weight: Tensor) -> Tensor:
        """Filters with the gaps of their dilation, extended by zeros to the size of a tile."""
        extended = weight.new_zeros((*weight.shape[:2], *self.tiling.lengths))
        taken = (
            slice(0, extent, dilation)
            for extent, dilation in zip(self.extents, self._geometry.dilation, strict=True)
        )
        extended[box(taken)] = weight
        return extended

    def window(self, image: Tensor, corner: tuple[int, ...]) -> Tensor:
        """Part of a padded image that a tile's outputs depend on, extended by zeros to the size of a tile."""
        extended = image.new_zeros((*image.shape[:2], *self.tiling.lengths))
        into, taken = self.overlap(corner)
        extended[box(taken)] = image[box(into)]
        return extended

    def grad_window(self, grad: Tensor, corner: tuple[int, ...]) -> Tensor:
        """Gradients of a tile's outputs at their pixels of the stride-1 output, and zeros elsewhere."""
        extended = grad.new_zeros((*grad.shape[:2], *self.tiling.lengths))
        outputs, points = self.outputs_of(corner)
        extended[box(points)] = grad[box(outputs)]
        return extended

    def overlap(self, corner: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Slices of the input pixels that a tile needs: first in the image, then in the tile.

        The tile may reach beyond the image, where it has zeros.
        """
        spans = [
            (max(0, first - padding), min(size, first - padding + side + extent - 1), first - padding)
            for first, side, extent, size, padding in zip(
                corner, self.tiling.sides, self.extents, self._sizes, self._geometry.padding, strict=True
            )
        ]
        spans = [(start, max(start, stop), begin) for start, stop, begin in spans]
        return (
            tuple(slice(start, stop) for start, stop, _ in spans),
            tuple(slice(start - begin, stop - begin) for start, stop, begin in spans),
        )

    def outputs_of(self, corner: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Slices of the output pixels that a tile computes: first in the output, then in the tile."""
        spans = [
            (first // step, min(size, -(-(first + side) // step)), step)
            for first, side, size, step in zip(
                corner, self.tiling.sides, self.outputs, self._geometry.stride, strict=True
            )
        ]
        return (
            tuple(slice(first, last) for first, last, _ in spans),
            tuple(slice(0, max(0, (last - first - 1) * step + 1), step) for first, last, step in spans),
        )
