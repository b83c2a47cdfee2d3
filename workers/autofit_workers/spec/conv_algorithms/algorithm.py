"""What a convolution algorithm is: one of a backend's, or a rewrite into other operators."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from autofit_workers.spec.work import Convolution

DEVICE_KINDS = ("cuda", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvAlgorithm:
    """A way to work out convolutions.

    Attributes:
        name: the value of the `conv_algo` knob, with its parameter.
        explanation: one line for a list of choices.
        device_kinds: where it applies.
        python_lines: what a user adds to a training script to get it.
        takes: what it takes beside its output, in words.
        source: of its formulas, where it has some.
    """

    name: str
    explanation: str
    device_kinds: tuple[str, ...]
    python_lines: tuple[str, ...]
    takes: str
    source: str = ""

    def lines_on(self, device_kind: str) -> tuple[str, ...]:  # noqa: ARG002 - a rewrite is the same on all
        """What a user adds to a training script on such a device."""
        return self.python_lines

    def why_not(self, call: Convolution) -> str | None:  # noqa: ARG002 - most apply to all
        """Why the algorithm cannot work out a convolution; None where it can."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite(ConvAlgorithm, ABC):
    """An exact rewrite of convolutions (`autofit_workers.conv`), on any device.

    A call that it cannot work out is left to the backend.
    """

    def leaves(self, call: Convolution) -> str | None:
        """Why a call is left to the backend; None where it is rewritten."""
        return "it is transposed" if call.transposed else self.why_not(call)

    @abstractmethod
    def own_bytes(self, call: Convolution) -> int:
        """What a call takes beside its output and beside what `handed_on` takes, at the most."""

    def handed_on(self, call: Convolution) -> Convolution | None:  # noqa: ARG002 - most use no backend
        """The call that the backend is asked for in its place, again and again; None for none."""
        return None

    def applies_to_none(self, reasons: Iterable[str]) -> str:
        """Says that it works out nothing of a workload, for such reasons."""
        why = "; ".join(dict.fromkeys(reasons)) or "it has none"
        return f"{self.name} applies to no convolution of the workload ({why}): choose another --conv-algo"

    def flops(self, call: Convolution) -> int:
        """Floating-point operations of a call, a multiplication and an addition counted as two."""
        return direct_flops(call)

    def moved_bytes(self, call: Convolution) -> int:
        """What is read and written: the tensors once, and what is laid out beside them twice."""
        return tensor_bytes(call) + 2 * self.own_bytes(call)

    def num_portions(self, call: Convolution) -> int:  # noqa: ARG002 - most take the batch as a whole
        """In how many portions the call is worked out, one after the other."""
        return 1


def tensor_bytes(call: Convolution) -> int:
    """The bytes of input, weight and output."""
    shapes = (call.input_shape, call.weight_shape, call.output_shape)
    return call.element_bytes * sum(map(math.prod, shapes))


def rewrite_lines(name: str) -> tuple[str, ...]:
    """What a script needs for a rewrite."""
    return (f'with autofit.apply_conv_algo(model, "{name}"):  # around forward, and so backward',)


def direct_flops(call: Convolution) -> int:
    """The operations of a convolution by its definition, the same in every pass."""
    per_output = math.prod(call.weight_shape[1:])
    return 2 * math.prod(call.output_shape) * per_output


def padded_shape(call: Convolution) -> tuple[int, ...]:
    """The spatial shape of the input with its zeros."""
    return tuple(size + 2 * p for size, p in zip(call.input_shape[2:], call.padding, strict=True))


def extents(call: Convolution) -> tuple[int, ...]:
    """How far the filter reaches, with the gaps of its dilation."""
    return tuple(d * (size - 1) + 1 for size, d in zip(call.weight_shape[2:], call.dilation, strict=True))


def peak(changes: Iterable[int]) -> int:
    """The most that blocks come to which are taken and, negative, given back in this order."""
    current = highest = 0
    for change in changes:
        current += change
        highest = max(highest, current)
    return highest
