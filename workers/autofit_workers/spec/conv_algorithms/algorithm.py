"""Base classes of convolution algorithms: a backend's, and rewrites into other operators."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from autofit_workers.spec.work import Convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvAlgorithm:
    """Way to compute convolutions: by the backend (cuDNN or oneDNN), or rewritten into other operators.

    Attributes:
        name: the value of the option `--conv-algo`, with its number if it takes one.
        explanation: one line for a list of choices.
        device_kinds: kinds of devices that it applies to, `cuda` and `cpu`.
        python_lines: lines that a user adds to a training script to get it.
        takes: memory that it takes besides its output, in words.
        source: publication that its formulas are from, if it has some; else empty.
    """

    name: str
    explanation: str
    device_kinds: tuple[str, ...]
    python_lines: tuple[str, ...]
    takes: str
    source: str = ""

    def lines_on(self, device_kind: str) -> tuple[str, ...]:  # noqa: ARG002 - a rewrite is the same on all
        """Lines of Python that a user adds to a training script for this algorithm on `cuda` or `cpu`."""
        return self.python_lines

    def why_not(self, call: Convolution) -> str | None:  # noqa: ARG002 - most apply to all
        """Reason why the algorithm cannot compute a convolution; None if it can."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite(ConvAlgorithm, ABC):
    """Exact rewrite of convolutions into other operators (`autofit_workers.conv`), on any device.

    A convolution that it cannot compute is left to the backend, cuDNN or oneDNN.
    """

    def leaves(self, call: Convolution) -> str | None:
        """Reason why a convolution is left to the backend; None if the rewrite computes it."""
        return "it is transposed" if call.transposed else self.why_not(call)

    @abstractmethod
    def own_bytes(self, call: Convolution) -> int:
        """Peak bytes that the rewrite of a convolution takes besides its output.

        The workspace of a smaller convolution that is left to the backend (`handed_on`) is not included.
        """

    def handed_on(self, call: Convolution) -> Convolution | None:  # noqa: ARG002 - most use no backend
        """Smaller convolution that the backend computes repeatedly in place of `call`; None for none."""
        return None

    def applies_to_none(self, reasons: Iterable[str]) -> str:
        """Error message for a workload none of whose convolutions can be rewritten.

        Args:
            reasons: why convolutions cannot be rewritten, in words.
        """
        why = "; ".join(dict.fromkeys(reasons)) or "it has none"
        return f"{self.name} applies to no convolution of the workload ({why}): choose another --conv-algo"

    def flops(self, call: Convolution) -> int:
        """Floating-point operations of a rewritten convolution: multiplications and additions."""
        return direct_flops(call)

    def moved_bytes(self, call: Convolution) -> int:
        """Bytes that a rewritten convolution reads and writes: its tensors once, its extra memory twice."""
        return tensor_bytes(call) + 2 * self.own_bytes(call)

    def num_portions(self, call: Convolution) -> int:  # noqa: ARG002 - most take the batch as a whole
        """Number of portions, such as micro-batches, in which a convolution is computed one by one."""
        return 1


def tensor_bytes(call: Convolution) -> int:
    """Bytes of a convolution's input, weight and output together."""
    shapes = (call.input_shape, call.weight_shape, call.output_shape)
    return call.element_bytes * sum(map(math.prod, shapes))


def rewrite_lines(name: str) -> tuple[str, ...]:
    """Lines of Python by which a training script uses a rewrite, given by its name."""
    return (f'with autofit.apply_conv_algo(model, "{name}"):  # around forward, and so backward',)


def direct_flops(call: Convolution) -> int:
    """Floating-point operations of a convolution by its definition, the same in every pass."""
    per_output = math.prod(call.weight_shape[1:])
    return 2 * math.prod(call.output_shape) * per_output


def padded_shape(call: Convolution) -> tuple[int, ...]:
    """Spatial shape of a convolution's input with its padding."""
    return tuple(size + 2 * p for size, p in zip(call.input_shape[2:], call.padding, strict=True))


def extents(call: Convolution) -> tuple[int, ...]:
    """Size of a convolution's filter in each spatial dimension, including the gaps of its dilation."""
    return tuple(d * (size - 1) + 1 for size, d in zip(call.weight_shape[2:], call.dilation, strict=True))


def peak(changes: Iterable[int]) -> int:
    """Peak of memory in use after a sequence of allocations (positive sizes) and frees (negative sizes)."""
    current = highest = 0
    for change in changes:
        current += change
        highest = max(highest, current)
    return highest
