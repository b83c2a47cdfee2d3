"""Stand-in for flash-attn-3, the module `flash_attn_interface`, on operators that a fake GPU can follow.

Source: hopper/flash_attn_interface.py of github.com/Dao-AILab/flash-attention as of August 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autofit_workers.spec.errors import UnsupportedError

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

_LIBRARY = torch.library.Library("flash_attn_3", "FRAGMENT")
_LIBRARY.define(
    "_flash_attn_forward(Tensor q, Tensor k, Tensor v, Tensor? k_new=None, Tensor? v_new=None, "
    "Tensor? qv=None, Tensor? out_=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
    "Tensor? cu_seqlens_k_new=None, Tensor? seqused_q=None, Tensor? seqused_k=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, Tensor? page_table=None, "
    "Tensor? kv_batch_idx=None, Tensor? leftpad_k=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None, "
    "Tensor? seqlens_rotary=None, Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None, "
    "float? softmax_scale=None, bool causal=False, SymInt window_size_left=-1, SymInt window_size_right=-1, "
    "SymInt attention_chunk=0, float softcap=0., bool rotary_interleaved=True, "
    "Tensor? scheduler_metadata=None, SymInt num_splits=1, bool? pack_gqa=None, SymInt sm_margin=0) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "_flash_attn_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, Tensor? sequed_q=None, Tensor? sequed_k=None, "
    "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, Tensor(a!)? dq=None, Tensor(b!)? dk=None, "
    "Tensor(c!)? dv=None, float? softmax_scale=None, bool is_causal=False, SymInt window_size_left=-1, "
    "SymInt window_size_right=-1, float softcap=0., bool deterministic=False, SymInt sm_margin=0) -> Tensor"
)
_OPERATORS: Any = torch.ops.flash_attn_3


@dataclass(frozen=True, slots=True)
class _Call:
    """Arguments of an attention call that forward and backward share, without its tensors.

    `shares_lengths` says that queries and keys have the same tensor of lengths, which is then given once:
    Dynamo does not follow an autograd function with a tensor that is given twice.
    """

    scale: float
    causal: bool
    window: tuple[int, int]
    softcap: float
    num_splits: int
    deterministic: bool
    returns_sums: bool
    longest: tuple[int | None, int | None] = (None, None)
    shares_lengths: bool = False

    def both(self, lengths: Sequence[Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
        """Lengths of queries and of keys."""
        return lengths[0], lengths[0] if self.shares_lengths else lengths[1]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, query: Tensor, key: Tensor, value: Tensor, call: _Call, *lengths: Tensor | None
    ) -> Tensor | tuple[Tensor, Tensor]:
        longest, longest_key = call.longest
        of_queries, of_keys = call.both(lengths)
        output, sums, *_ = _OPERATORS._flash_attn_forward(
            query,
            key,
            value,
            cu_seqlens_q=of_queries,
            cu_seqlens_k=of_keys,
            max_seqlen_q=longest,
            max_seqlen_k=longest_key,
            softmax_scale=call.scale,
            causal=call.causal,
            window_size_left=call.window[0],
            window_size_right=call.window[1],
            softcap=call.softcap,
            num_splits=call.num_splits,
        )
        context.save_for_backward(query, key, value, output, sums, *lengths)
        context.call = call
        return (output, sums) if call.returns_sums else output

    @staticmethod
    def backward(context: Any, grad: Tensor, *_others: Any) -> tuple[Tensor | None, ...]:
        query, key, value, output, sums, *lengths = context.saved_tensors
        call = context.call
        gradients = [torch.empty_like(each) for each in (query, key, value)]
        _OPERATORS._flash_attn_backward(
            grad,
            query,
            key,
            value,
            output,
            sums,
            *call.both(lengths),
            None,
            None,
            *call.longest,
            *gradients,
            call.scale,
            call.causal,
            *call.window,
            call.softcap,
            call.deterministic,
        )
        return (*gradients, None, None, None)


def flash_attn_func(  # noqa: PLR0917 - the library's own signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,  # noqa: ARG001 - decides speed alone
    deterministic: bool = False,
    sm_margin: int = 0,  # noqa: ARG001 - likewise
    return_attn_probs: bool = False,
) -> Any:
    """Attention output of shape B×S×H×D for query, key and value of such shapes."""
    _require_plain(qv, q_descale, k_descale, v_descale, attention_chunk)
    scale = q.size(-1) ** -0.5 if softmax_scale is None else softmax_scale
    call = _Call(scale, causal, window_size, softcap, num_splits, deterministic, return_attn_probs)
    return _Attention.apply(q, k, v, call, None, None)


def flash_attn_varlen_func(  # noqa: PLR0917 - the library's own signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,  # noqa: ARG001 - decides speed alone
    deterministic: bool = False,
    sm_margin: int = 0,  # noqa: ARG001 - likewise
    return_attn_probs: bool = False,
) -> Any:
    """Attention output for packed sequences; query, key, value and output have the shape S×H×D."""
    _require_plain(qv, q_descale, k_descale, v_descale, attention_chunk, seqused_q, seqused_k)
    scale = q.size(-1) ** -0.5 if softmax_scale is None else softmax_scale
    call = _Call(
        scale,
        causal,
        window_size,
        softcap,
        num_splits,
        deterministic,
        return_attn_probs,
        (int(max_seqlen_q), int(max_seqlen_k)),
        cu_seqlens_q is cu_seqlens_k,
    )
    return _Attention.apply(q, k, v, call, cu_seqlens_q, None if call.shares_lengths else cu_seqlens_k)


def flash_attn_with_kvcache(
    q: Tensor,  # noqa: ARG001 - transformers asks for the names
    k_cache: Tensor,  # noqa: ARG001
    v_cache: Tensor,  # noqa: ARG001
    **_options: Any,
) -> Any:
    """Raises `UnsupportedError`: training does not decode with a KV cache."""
    raise UnsupportedError(
        "FlashAttention 3 with a cache of keys and values is not predicted: measure instead"
    )


def _require_plain(*given: object) -> None:
    if any(each is not None and each != 0 for each in given):
        raise UnsupportedError(
            "FlashAttention 3 with 8-bit scales, second queries, chunks or lengths in use is not predicted: "
            "measure instead"
        )
