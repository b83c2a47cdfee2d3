"""Stand-in for flash-attn-3, the module `flash_attn_interface`, on operators that a fake GPU can follow.

Source: hopper/flash_attn_interface.py of github.com/Dao-AILab/flash-attention as of August 2026.
"""

from __future__ import annotations

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


# Arguments of the forward operator that its backward takes too.
_KEPT = (
    "softmax_scale",
    "causal",
    "window_size_left",
    "window_size_right",
    "softcap",
    "max_seqlen_q",
    "max_seqlen_k",
)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Keeps what backward takes: queries, keys, values, lengths, and the first two outputs."""
    given = dict(zip(_ARGUMENTS, inputs, strict=True))
    tensors = (given[name] for name in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k"))
    ctx.save_for_backward(*tensors, *output[:2])
    ctx.given = {name: given[name] for name in _KEPT}
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor, *_others: Any) -> tuple[Tensor | None, ...]:
    query, key, value, of_queries, of_keys, output, sums = ctx.saved_tensors
    given = ctx.given
    gradients = [torch.empty_like(each) for each in (query, key, value)]
    _OPERATORS._flash_attn_backward(
        grad,
        query,
        key,
        value,
        output,
        sums,
        of_queries,
        of_keys,
        None,
        None,
        given["max_seqlen_q"],
        given["max_seqlen_k"],
        *gradients,
        given["softmax_scale"],
        given["causal"],
        given["window_size_left"],
        given["window_size_right"],
        given["softcap"],
    )
    return (*gradients, *[None] * (len(_ARGUMENTS) - len(gradients)))


_ARGUMENTS = [each.name for each in _OPERATORS._flash_attn_forward.default._schema.arguments]
torch.library.register_autograd(
    "flash_attn_3::_flash_attn_forward", _differentiate, setup_context=_keep, lib=_LIBRARY
)


def _attend(
    tensors: tuple[Tensor, Tensor, Tensor],
    lengths: tuple[Tensor | None, Tensor | None] = (None, None),
    longest: tuple[int | None, int | None] = (None, None),
    *,
    returns_sums: bool,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    query, key, value = tensors
    scale, window = options.pop("softmax_scale"), options.pop("window_size")
    output, sums, *_ = _OPERATORS._flash_attn_forward(
        query,
        key,
        value,
        cu_seqlens_q=lengths[0],
        cu_seqlens_k=lengths[1],
        max_seqlen_q=longest[0],
        max_seqlen_k=longest[1],
        softmax_scale=query.size(-1) ** -0.5 if scale is None else scale,
        window_size_left=window[0],
        window_size_right=window[1],
        **options,
    )
    return (output, sums) if returns_sums else output


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
    deterministic: bool = False,  # noqa: ARG001 - likewise
    sm_margin: int = 0,  # noqa: ARG001 - likewise
    return_attn_probs: bool = False,
) -> Any:
    """Attention output of shape B×S×H×D for query, key and value of such shapes."""
    _require_plain(qv, q_descale, k_descale, v_descale, attention_chunk)
    return _attend(
        (q, k, v),
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        num_splits=num_splits,
        returns_sums=return_attn_probs,
    )


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
    deterministic: bool = False,  # noqa: ARG001 - likewise
    sm_margin: int = 0,  # noqa: ARG001 - likewise
    return_attn_probs: bool = False,
) -> Any:
    """Attention output for packed sequences; query, key, value and output have the shape S×H×D."""
    _require_plain(qv, q_descale, k_descale, v_descale, attention_chunk, seqused_q, seqused_k)
    return _attend(
        (q, k, v),
        (cu_seqlens_q, cu_seqlens_k),
        (int(max_seqlen_q), int(max_seqlen_k)),
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        num_splits=num_splits,
        returns_sums=return_attn_probs,
    )


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
