"""Outputs and scratch memory of FlashAttention 2's operators, from release 2.7 on.

Since that release its functions are PyTorch operators. Sources, in 2.7.0, 2.7.4, 2.8.0 and 2.8.3 of
github.com/Dao-AILab/flash-attention: flash_attn/flash_attn_interface.py for the calls, and
csrc/flash_attn/flash_api.cpp for their allocations. Not predicted: copies of tensors whose last dimension is
not dense, which callers do not pass.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch
from torch import Tensor

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.trace import Scratch
from autofit_workers.spec.versions import parse_release
from autofit_workers.tracing.kernels.registry import Kernel

_HALF = (torch.float16, torch.bfloat16)
_LARGEST_HEAD = 256
_WIDER_ACCUMULATORS_SINCE = (2, 8)
_FLOAT_BYTES = 4
_TILE = 128  # most rows that a thread block of a kernel handles


def require_taken(query: Tensor) -> None:
    """Raises `InapplicableError` if FlashAttention's kernels refuse the dtype or head size of queries."""
    if query.dtype not in _HALF:
        dtype = str(query.dtype).removeprefix("torch.")
        raise InapplicableError(
            f"FlashAttention takes fp16 and bf16 alone, and queries are {dtype}: convert the model or "
            "run it under autocast (--precision bf16, amp-bf16 or amp-fp16), or choose another --attention"
        )
    if query.size(-1) > _LARGEST_HEAD:
        raise InapplicableError(
            f"FlashAttention takes heads of at most {_LARGEST_HEAD} numbers, and these have "
            f"{query.size(-1)}: choose another --attention"
        )


def _padded(length: int, multiple: int = _TILE) -> int:
    return -(-length // multiple) * multiple


def _accumulated(head_size: int) -> int:
    """Head size rounded up to that of FlashAttention's float32 accumulators (`head_size_rounded`)."""
    if _release() >= _WIDER_ACCUMULATORS_SINCE:
        return _padded(head_size, 32 if head_size <= 128 else 64)
    return _padded(head_size, 32) if head_size <= 192 else 256


def _release() -> tuple[int, int]:
    """Release of flash-attn, as (major, minor): the installed one, or (2, 8), which the stand-in imitates."""
    try:
        return parse_release(importlib.metadata.version("flash-attn"))
    except importlib.metadata.PackageNotFoundError:
        return _WIDER_ACCUMULATORS_SINCE


def _forward(q: Tensor, k: Tensor, return_softmax: bool, **_rest: Any) -> tuple[Tensor, ...]:
    """Outputs of `mha_fwd`, FlashAttention's forward pass for a batch of equal lengths."""
    require_taken(q)
    batch, rows, heads, _ = q.shape
    probabilities = (batch, heads, _padded(rows), _padded(k.size(1))) if return_softmax else (0,)
    return _returned(q, (batch, heads, rows), probabilities)


def _packed_forward(
    *,
    q: Tensor,
    cu_seqlens_q: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    return_softmax: bool,
    **_rest: Any,
) -> tuple[Tensor, ...]:
    """Outputs of `mha_varlen_fwd`, FlashAttention's forward pass for packed sequences."""
    require_taken(q)
    rows, heads, _ = q.shape
    batch = cu_seqlens_q.numel() - 1
    probabilities = (batch, heads, _padded(max_seqlen_q), _padded(max_seqlen_k)) if return_softmax else (0,)
    return _returned(q, (heads, rows), probabilities)


def _returned(q: Tensor, rows: tuple[int, ...], probabilities: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Outputs of FlashAttention's forward: output, log-sum-exp, attention probabilities, random state.

    Args:
        rows: shape of the log-sum-exp.
        probabilities: shape of the attention probabilities, which only tests ask for; else `(0,)`.
    """
    return (
        torch.empty_like(q if q.stride(-1) == 1 else q.contiguous()),
        q.new_empty(rows, dtype=torch.float32),
        q.new_empty(probabilities),
        q.new_empty(2, dtype=torch.int64),
    )


def forward_scratch(q: Tensor, k: Tensor, dropout_p: float, **_rest: Any) -> tuple[Scratch, ...]:
    """Scratch memory of `mha_fwd` if it splits keys: log-sum-exp and partial output of each split.

    There is none with dropout. Source: `set_params_splitkv`.
    """
    if dropout_p > 0:
        return ()
    batch, rows, heads, head_size = q.shape
    call = (batch, heads, rows, k.size(1), head_size)
    return tuple(
        Scratch(formula="flash2_forward_splits", dimensions=(*call, numbers), element_bytes=_FLOAT_BYTES)
        for numbers in (1, _accumulated(head_size))
    )


def _backward(q: Tensor, **_rest: Any) -> Tensor:
    """Output of `mha_bwd`: `softmax_d`, the row sums; it writes gradients into its arguments."""
    return q.new_empty(row_sums(q), dtype=torch.float32)


def _packed_backward(q: Tensor, cu_seqlens_q: Tensor, **_rest: Any) -> Tensor:
    """Output of `mha_varlen_bwd`: `softmax_d`, the row sums, padded by a tile of rows per sequence."""
    return q.new_empty(row_sums(q, cu_seqlens_q), dtype=torch.float32)


def row_sums(q: Tensor, lengths: Tensor | None = None) -> tuple[int, ...]:
    """Shape of `softmax_d`, the row sums of backward.

    Args:
        lengths: cumulative lengths of packed sequences; None for a batch.
    """
    if lengths is not None:
        return q.size(1), _spaced(q, lengths)
    batch, rows, heads, _ = q.shape
    return batch, heads, _padded(rows)


def _spaced(q: Tensor, lengths: Tensor) -> int:
    return q.size(0) + _TILE * (lengths.numel() - 1)


def backward_scratch(q: Tensor, k: Tensor, deterministic: bool, **_rest: Any) -> tuple[Scratch, ...]:
    """Scratch memory of `mha_bwd`, without its output `softmax_d`."""
    batch, rows, heads, head_size = q.shape
    return (
        _query_gradient(batch, heads, batch * _padded(rows), head_size, deterministic=deterministic),
        *_expanded(q, k, (batch, k.size(1), heads, head_size)),
    )


def packed_backward_scratch(
    q: Tensor, k: Tensor, cu_seqlens_q: Tensor, deterministic: bool, **_rest: Any
) -> tuple[Scratch, ...]:
    """Scratch memory of `mha_varlen_bwd`, without its output `softmax_d`."""
    batch, (_, heads, head_size) = cu_seqlens_q.numel() - 1, q.shape
    rows = _spaced(q, cu_seqlens_q)
    return (
        _query_gradient(batch, heads, rows, head_size, deterministic=deterministic),
        *_expanded(q, k, (k.size(0), heads, head_size)),
    )


def _query_gradient(batch: int, heads: int, rows: int, head_size: int, *, deterministic: bool) -> Scratch:
    """Scratch for `dq_accum`: float32 sums of dQ, in several copies if the result must be deterministic."""
    width = _accumulated(head_size)
    formula = "flash2_query_gradient_splits" if deterministic else "elements"
    call = (batch, heads, rows, width) if deterministic else (rows, heads, width)
    return Scratch(formula=formula, dimensions=call, element_bytes=_FLOAT_BYTES)


def _expanded(q: Tensor, k: Tensor, shape: tuple[int, ...]) -> tuple[Scratch, ...]:
    """Scratch for `dk_expanded` and `dv_expanded`: gradients per query head, if query heads share keys."""
    if k.size(-2) == q.size(-2):
        return ()
    return (Scratch(formula="elements", dimensions=shape, element_bytes=q.element_size()),) * 2


def _kernel(outputs: Any, scratch: Any = None) -> Kernel:
    return Kernel(outputs=outputs, scratch=scratch, by_name=True)


KERNELS = {
    "flash_attn::_flash_attn_forward": _kernel(_forward, forward_scratch),
    "flash_attn::_flash_attn_varlen_forward": _kernel(_packed_forward),
    "flash_attn::_flash_attn_backward": _kernel(_backward, backward_scratch),
    "flash_attn::_flash_attn_varlen_backward": _kernel(_packed_backward, packed_backward_scratch),
}
