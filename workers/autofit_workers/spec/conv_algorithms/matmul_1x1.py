"""Convolution with filters of one point as a matrix product, without columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofit_workers.spec.conv_algorithms.algorithm import Rewrite, padded_shape, rewrite_lines
from autofit_workers.spec.devices import DEVICE_KINDS
from autofit_workers.spec.work import Convolution, ConvPass


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul1x1(Rewrite):
    """Rewrite of a 1×1 convolution into matrix products."""

    def why_not(self, call: Convolution) -> str | None:
        filter_shape = call.weight_shape[2:]
        if math.prod(filter_shape) == 1:
            return None
        return f"its filter is {'×'.join(map(str, filter_shape))}, not one point"

    def own_bytes(self, call: Convolution) -> int:
        """Bytes of copies of the input, made if the convolution has strides or padding; else 0."""
        num_samples, channels = call.input_shape[:2]
        is_strided = set(call.stride) != {1}
        if not is_strided and not any(call.padding):
            return 0
        seen = channels * math.prod(call.output_shape[2:])
        if call.conv_pass is ConvPass.DGRAD:
            return call.element_bytes * seen
        padded = channels * math.prod(padded_shape(call)) if any(call.padding) else 0
        return call.element_bytes * num_samples * (padded + (seen if is_strided else 0))

    def num_portions(self, call: Convolution) -> int:
        """Number of matrix products, one for each sample."""
        return call.input_shape[0]


ALGORITHM = Matmul1x1(
    name="matmul-1x1",
    explanation="1×1 filters as a matrix product; other layers are left to the backend",
    takes="nothing; with strides or zeros at the border, copies of what the filters see",
    device_kinds=DEVICE_KINDS,
    python_lines=rewrite_lines("matmul-1x1"),
)
