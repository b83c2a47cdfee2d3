"""im2col convolution: the whole batch laid out in columns, then matrix products."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofit_workers.spec.conv_algorithms.algorithm import Rewrite, padded_shape, rewrite_lines
from autofit_workers.spec.devices import DEVICE_KINDS
from autofit_workers.spec.work import Convolution, ConvPass


@dataclass(frozen=True, slots=True, kw_only=True)
class Im2col(Rewrite):
    """Rewrite of a convolution into matrix products with im2col columns, made for the whole batch."""

    def own_bytes(self, call: Convolution) -> int:
        """Bytes of the im2col columns, and of the padded input.

        The columns have N·C · filter elements · output pixels elements.
        """
        num_samples, channels = call.input_shape[:2]
        columns = channels * math.prod(call.weight_shape[2:]) * math.prod(call.output_shape[2:])
        padded = 0
        if any(call.padding) and call.conv_pass is not ConvPass.DGRAD:
            padded = channels * math.prod(padded_shape(call))
        return call.element_bytes * num_samples * (columns + padded)

    def num_portions(self, call: Convolution) -> int:
        """Number of matrix products, one for each sample."""
        return call.input_shape[0]


ALGORITHM = Im2col(
    name="im2col",
    explanation="one matrix product; needs filter size × output area of memory, for the whole batch",
    takes="columns, N·C·filter·output",
    device_kinds=DEVICE_KINDS,
    python_lines=rewrite_lines("im2col"),
    source="Chellapilla, Puri and Simard, High performance convolutional neural networks, 2006",
)
