"""Chunked convolution: the backend's own algorithm on a few samples at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autofit_workers.spec.conv_algorithms.algorithm import Rewrite, rewrite_lines, tensor_bytes
from autofit_workers.spec.devices import DEVICE_KINDS
from autofit_workers.spec.work import Convolution, ConvPass


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunked(Rewrite):
    """Rewrite of a convolution into several by the backend, each on a micro-batch of the samples.

    Attributes:
        num_samples: samples of a micro-batch.
    """

    num_samples: int

    def own_bytes(self, call: Convolution) -> int:
        """Bytes of a micro-batch's result, which is held until it is copied into the whole result."""
        part = self.handed_on(call)
        made = {
            ConvPass.FPROP: part.output_shape,
            ConvPass.DGRAD: part.input_shape,
            ConvPass.WGRAD: part.weight_shape,
        }
        return call.element_bytes * math.prod(made[call.conv_pass])

    def handed_on(self, call: Convolution) -> Convolution:
        return call.of_samples(min(self.num_samples, call.input_shape[0]))

    def moved_bytes(self, call: Convolution) -> int:
        """Bytes read and written by all micro-batches together.

        They are those of the whole convolution, the copies of each result, and the weight once more for each
        micro-batch after the first.
        """
        weight = call.element_bytes * math.prod(call.weight_shape)
        copied = 2 * self.own_bytes(call) * self.num_portions(call)
        return tensor_bytes(call) + copied + weight * (self.num_portions(call) - 1)

    def num_portions(self, call: Convolution) -> int:
        return -(-call.input_shape[0] // self.num_samples)


def algorithm(num_samples: int) -> Chunked:
    """Chunked convolution with micro-batches of `num_samples` samples."""
    name = f"chunked:{num_samples}"
    return Chunked(
        name=name,
        explanation=f"the backend's own algorithm on {num_samples} samples at a time",
        takes=f"what the backend takes for {num_samples} samples, and their result",
        device_kinds=DEVICE_KINDS,
        python_lines=rewrite_lines(name),
        source="Oyama et al., Accelerating deep learning frameworks with micro-batches, 2018",
        num_samples=num_samples,
    )
