"""Applies knobs to PyTorch for the length of a trial, and puts every flag back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch

from workers.errors import UnsupportedError
from workers.knobs import conv
from workers.protocol import Knobs


@contextmanager
def applied(knobs: Knobs, device_kind: str) -> Iterator[None]:
    """Sets the flags of the convolution policy and of the precision.

    Both precisions of `PRECISIONS` leave PyTorch's own defaults: TF32 in convolutions, not in
    matrix products (documented under "TensorFloat-32" in PyTorch's CUDA notes). Autocast is
    `autocast_factory`'s, the optimizer is chosen where it is made.

    Raises:
        UnsupportedError: the convolution policy means nothing on this kind of device.
    """
    policy = conv.POLICIES[knobs.conv_algo]
    if device_kind not in policy.device_kinds:
        raise UnsupportedError(
            f"conv_algo {policy.name} does not apply to {device_kind}: "
            f"use {', '.join(conv.applicable(device_kind))}"
        )
    with (
        torch.backends.cudnn.flags(
            enabled=policy.enabled,
            benchmark=policy.benchmark,
            deterministic=policy.deterministic,
            allow_tf32=True,
        ),
        _matmul_precision("highest"),
    ):
        yield


def autocast_factory(knobs: Knobs, device_kind: str) -> Callable[[], AbstractContextManager[object]]:
    """What makes the autocast context of one step under this precision."""
    if knobs.precision == "amp-bf16":
        return partial(torch.autocast, device_kind, dtype=torch.bfloat16)
    return nullcontext


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    if precision == before:  # setting it would fix flags that PyTorch leaves open by default
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
