"""Shape functions of `SyncBatchNorm`'s operators, which PyTorch has for GPUs alone.

Sources are Normalization.cu and Normalization.cuh in aten/src/ATen/native/cuda. Statistics are float32 for
inputs of half precision. Scratch memory of reductions over many rows, some KiB, is not predicted.
"""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = (torch.float16, torch.bfloat16)


def install() -> torch.library.Library:
    """Registers fake functions for `SyncBatchNorm`'s operators, until the returned library is deleted."""
    library = torch.library.Library("aten", "IMPL")
    for name, function in _SHAPES.items():
        library.impl(name, function, "Meta")
    return library


def _of_channels(given: Tensor) -> Tensor:
    dtype = torch.float32 if given.dtype in _HALF else given.dtype
    return given.new_empty(given.size(1), dtype=dtype)


def _stats(given: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
    return _of_channels(given), _of_channels(given)


def _gathered_stats(given: Tensor, *_others: object) -> tuple[Tensor, Tensor]:
    return _of_channels(given), _of_channels(given)


def _normalized(given: Tensor, *_others: object) -> Tensor:
    return torch.empty_like(given)


def _reduced(
    _grad: Tensor,
    given: Tensor,
    _mean: Tensor,
    _invstd: Tensor,
    weight: Tensor | None,
    _for_input: bool,
    for_weight: bool,
    for_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Fake outputs of `batch_norm_backward_reduce`: sums per channel, and gradients of weight and bias."""
    like = _of_channels(given) if weight is None else weight
    return (
        _of_channels(given),
        _of_channels(given),
        torch.empty_like(like) if for_weight else None,
        torch.empty_like(like) if for_bias else None,
    )


def _input_gradient(_grad: Tensor, given: Tensor, *_others: object) -> Tensor:
    return torch.empty_like(given)


_SHAPES = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gathered_stats,
    "batch_norm_elemt": _normalized,
    "batch_norm_backward_reduce": _reduced,
    "batch_norm_backward_elemt": _input_gradient,
}
