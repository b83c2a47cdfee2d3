"""Stand-in for `flash_attn.layers.rotary`, whose Triton kernel rotates queries and keys by position.

It allocates and keeps what the library does (flash_attn/layers/rotary.py and ops/triton/rotary.py of release
2.8.3): the result, and contiguous copies of cosines and sines while the kernel runs. Cosines and sines are
saved for backward without a copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["apply_rotary_emb", "apply_rotary_emb_func"]


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, given: Tensor, cos: Tensor, sin: Tensor, inplace: bool, *kept: Tensor | None
    ) -> Tensor:
        context.inplace = inplace
        context.save_for_backward(cos, sin, *kept)
        if inplace:
            context.mark_dirty(given)
        return _rotated(given, cos, sin, inplace=inplace)

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, *kept = context.saved_tensors
        return _rotated(grad, cos, sin, inplace=context.inplace), None, None, None, *(None for _ in kept)


def _rotated(given: Tensor, cos: Tensor, sin: Tensor, *, inplace: bool) -> Tensor:
    copies = cos.contiguous(), sin.contiguous()
    rotated = given if inplace else torch.empty_like(given)
    del copies
    return rotated


def apply_rotary_emb(  # noqa: PLR0917 - the library's own signature
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,  # noqa: ARG001 - decides which elements pair, not what is allocated
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,  # noqa: ARG001
) -> Tensor:
    """Tensor `x` after rotary embedding, of shape B×S×H×D, or S×H×D for packed sequences."""
    offsets = (seqlen_offsets,) if isinstance(seqlen_offsets, Tensor) else ()
    rotated: Tensor = _Rotated.apply(x, cos, sin, inplace, cu_seqlens, *offsets)
    return rotated


apply_rotary_emb_func = apply_rotary_emb  # the library's older name for it
