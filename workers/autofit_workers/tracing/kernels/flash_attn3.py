"""Outputs and scratch memory of FlashAttention 3's operators.

Sources are hopper/flash_attn_interface.py and hopper/flash_api.cpp of github.com/Dao-AILab/flash-attention as
of August 2026; sizes are those of the code in release 2.8.3. Not predicted: semaphores of some kilobytes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofit_workers.replay.curve.scratch.flash import CAPPED, CAUSAL, FULL, LOCAL
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.trace import Scratch
from autofit_workers.tracing.kernels.flash_attn2 import require_taken
from autofit_workers.tracing.kernels.registry import Kernel

_FLOAT_BYTES = 4
_WIDTHS = (64, 96, 128, 192, 256)  # head sizes are rounded up to these (`round_up_headdim`)


def _forward(
    q: Tensor, v: Tensor, cu_seqlens_q: Tensor | None, num_splits: int, **_rest: Any
) -> tuple[Tensor, ...]:
    """Outputs of `mha_fwd`: output, log-sum-exp, and partial outputs and log-sum-exps of splits."""
    require_taken(q)
    if q.size(-1) % 8:
        raise InapplicableError(
            f"FlashAttention 3 takes heads of a multiple of 8 numbers, and these have {q.size(-1)}: choose "
            "another --attention"
        )
    *batch, rows, heads, _ = q.shape
    sums = (*batch, heads, rows) if cu_seqlens_q is None else (heads, rows)
    splits = (num_splits,) if num_splits > 1 else (0,)
    return (
        q.new_empty((*q.shape[:-1], v.size(-1))),
        q.new_empty(sums, dtype=torch.float32),
        q.new_empty((*splits, *sums, v.size(-1)), dtype=torch.float32),
        q.new_empty((*splits, *sums), dtype=torch.float32),
    )


def _backward(q: Tensor, cu_seqlens_q: Tensor | None, **_rest: Any) -> Tensor:
    """Output of `mha_bwd`: the row sums `softmax_d`, here without elements as their size depends on the card.

    `backward_scratch` has their memory instead.
    """
    del cu_seqlens_q
    return q.new_empty(0, dtype=torch.float32)


def backward_scratch(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    **_rest: Any,
) -> tuple[Scratch, ...]:
    """Scratch memory of `mha_bwd`: float32 row sums, log-sum-exps and query gradients.

    They are `softmax_d`, `softmax_lse_log2` and `dq_accum`. If query heads share keys, there are also
    `dk_accum` and `dv_accum`.
    """
    width = next(each for each in _WIDTHS if each >= max(q.size(-1), v.size(-1)))
    rows, keys = q.size(-3), k.size(-3)
    longest = rows if max_seqlen_q is None else max_seqlen_q
    longest_key = keys if max_seqlen_k is None else max_seqlen_k
    mask = _mask(window_size_left, window_size_right, longest, longest_key, is_causal=is_causal)
    mask |= CAPPED if softcap > 0 else 0
    heads, kept_heads = q.size(-2), k.size(-2)
    packed = cu_seqlens_q is not None
    prefix = "flash3_packed_" if packed else "flash3_"
    batch = cu_seqlens_q.numel() - 1 if cu_seqlens_q is not None else q.size(0)
    key_batch = cu_seqlens_k.numel() - 1 if cu_seqlens_k is not None else batch

    def piece(formula: str, *dimensions: int) -> Scratch:
        return Scratch(formula=prefix + formula, dimensions=dimensions, element_bytes=_FLOAT_BYTES)

    of_rows = [piece("rows", batch, heads, rows, width, mask, numbers) for numbers in (1, 1, width)]
    shares = kept_heads != heads
    return (*of_rows, *([piece("keys", key_batch, kept_heads, keys, width)] * (2 * shares)))


def _mask(left: int, right: int, rows: int, keys: int, *, is_causal: bool) -> int:
    """Kind of attention mask, causal, local or full; a window that covers all keys counts as full."""
    left = -1 if left >= keys - 1 else left
    right = 0 if is_causal else -1 if right >= rows - 1 else right
    if left < 0 and right == 0:
        return CAUSAL
    return LOCAL if left >= 0 or right >= 0 else FULL


KERNELS = {
    "flash_attn_3::_flash_attn_forward": Kernel(outputs=_forward, by_name=True),
    "flash_attn_3::_flash_attn_backward": Kernel(outputs=_backward, scratch=backward_scratch, by_name=True),
}
