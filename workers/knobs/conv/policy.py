"""What a convolution policy is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvPolicy:
    """A way of choosing convolution algorithms.

    Attributes:
        name: the value of the `conv_algo` knob.
        explanation: one line for a list of choices.
        device_kinds: where it applies.
        enabled, benchmark, deterministic: the flags of `torch.backends.cudnn`.
        python_lines: what a user adds to a training script to get it.
    """

    name: str
    explanation: str
    device_kinds: tuple[str, ...] = ("cuda",)
    enabled: bool = True
    benchmark: bool = False
    deterministic: bool = False
    python_lines: tuple[str, ...]
