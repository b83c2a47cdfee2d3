"""Chunked im2col convolution: columns of a few output pixels of one image at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofit_workers.spec.conv_algorithms.algorithm import (
    Rewrite,
    extents,
    padded_shape,
    rewrite_lines,
    tensor_bytes,
)
from autofit_workers.spec.devices import DEVICE_KINDS
from autofit_workers.spec.work import Convolution, ConvPass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedIm2col(Rewrite):
    """Rewrite of a convolution into matrix products with im2col columns of a few output pixels at a time.

    Attributes:
        num_pixels: number of output pixels whose columns are made at a time.
    """

    num_pixels: int

    def own_bytes(self, call: Convolution) -> int:
        """Bytes of the im2col columns, and of one padded image, whatever the batch size.

        The columns have C · filter elements · pixels elements. The gradient of the input is itself a
        convolution of the output's gradient: with output channels in place of input channels, mirrored
        filters, and zeros between pixels for strides.
        """
        filter_size = math.prod(call.weight_shape[2:])
        if call.conv_pass is ConvPass.DGRAD:
            outputs = call.output_shape[1]
            mirrored = math.prod(call.weight_shape)
            pixels = min(self.num_pixels, math.prod(call.input_shape[2:]))
            spread = math.prod(
                size + extent - 1 for size, extent in zip(call.input_shape[2:], extents(call), strict=True)
            )
            elements = mirrored + max(mirrored, outputs * (filter_size * pixels + spread))
            return call.element_bytes * elements
        channels = call.input_shape[1]
        pixels = min(self.num_pixels, math.prod(call.output_shape[2:]))
        image = math.prod(padded_shape(call)) if any(call.padding) else 0
        return call.element_bytes * channels * (filter_size * pixels + image)

    def moved_bytes(self, call: Convolution) -> int:
        """Bytes read and written: the tensors, and the im2col columns of the whole batch once each way."""
        rows = call.input_shape[1] * math.prod(call.weight_shape[2:])
        columns = call.input_shape[0] * rows * math.prod(call.output_shape[2:])
        return tensor_bytes(call) + 2 * call.element_bytes * columns

    def num_portions(self, call: Convolution) -> int:
        return call.input_shape[0] * -(-math.prod(call.output_shape[2:]) // self.num_pixels)


def algorithm(num_pixels: int) -> ChunkedIm2col:
    """Chunked im2col with columns of `num_pixels` output pixels."""
    name = f"im2col-chunked:{num_pixels}"
    return ChunkedIm2col(
        name=name,
        explanation=f"matrix products of {num_pixels} output pixels of one image at a time",
        takes=f"columns, C·filter·pixels of {num_pixels} output pixels, and one image with its zeros",
        device_kinds=DEVICE_KINDS,
        python_lines=rewrite_lines(name),
        source="as im2col",
        num_pixels=num_pixels,
    )
