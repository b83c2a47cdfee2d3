"""Stand-in for flash-attn: its Python functions, on operators that a fake GPU can follow.

The functions allocate and keep what the library's do (flash_attn/flash_attn_interface.py of release 2.8.3):
head sizes are padded to a multiple of 8, forward saves its inputs and outputs for backward, and backward
allocates the gradients before its kernel runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from autofit_workers.spec.errors import UnsupportedError

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

_LIBRARY = torch.library.Library("flash_attn", "FRAGMENT")
_OPTIONS = (
    "float dropout_p, float softmax_scale, bool causal, SymInt window_size_left{left}, "
    "SymInt window_size_right{left}, float softcap{zero}, Tensor? alibi_slopes{none}"
)
_PLAIN = _OPTIONS.format(left="", zero="", none="")
_DEFAULTS = _OPTIONS.format(left="=-1", zero="=0.", none="=None")
_PACKED = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"
_GIVEN = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, "
    "Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv"
)
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
_SCHEMAS = (
    f"_flash_attn_forward(Tensor q, Tensor k, Tensor v, {_PLAIN}, bool return_softmax) -> {_FOUR}",
    f"_flash_attn_varlen_forward(Tensor q, Tensor k, Tensor v, {_PACKED}, {_DEFAULTS}, "
    "bool return_softmax=False, Tensor? block_table=None, Tensor? leftpad_k=None, Tensor? seqused_k=None, "
    f"bool zero_tensors=False) -> {_FOUR}",
    f"_flash_attn_backward({_GIVEN}, {_PLAIN}, bool deterministic, Tensor? rng_state=None) -> Tensor",
    f"_flash_attn_varlen_backward({_GIVEN}, {_PACKED}, {_PLAIN}, bool deterministic, "
    "Tensor? rng_state=None, bool zero_tensors=False) -> Tensor",
)
for _schema in _SCHEMAS:
    _LIBRARY.define(_schema)
_OPERATORS: Any = torch.ops.flash_attn


@dataclass(frozen=True, slots=True)
class _Call:
    """Arguments of an attention call that forward and backward share, without its tensors."""

    options: tuple[Any, ...]  # from `dropout_p` to `alibi_slopes`
    deterministic: bool
    returns_probabilities: bool
    longest: tuple[int, ...] = ()  # longest query and key sequence, if packed


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, query: Tensor, key: Tensor, value: Tensor, call: _Call, *lengths: Tensor
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        head_size = query.size(-1)
        query, key, value = _whole_eights(query), _whole_eights(key), _whole_eights(value)
        operator = _OPERATORS._flash_attn_varlen_forward if lengths else _OPERATORS._flash_attn_forward
        returns_probabilities = call.returns_probabilities and call.options[0] > 0
        output, sums, probabilities, random_state = operator(
            query, key, value, *lengths, *call.longest, *call.options, returns_probabilities
        )
        context.save_for_backward(query, key, value, output, sums, random_state, *lengths)
        context.call = call
        output = output[..., :head_size]
        return (output, sums, probabilities) if call.returns_probabilities else output

    @staticmethod
    def backward(context: Any, grad: Tensor, *_others: Any) -> tuple[Tensor | None, ...]:
        query, key, value, output, sums, random_state, *lengths = context.saved_tensors
        call, head_size = context.call, grad.size(-1)
        gradients = [torch.empty_like(each) for each in (query, key, value)]
        operator = _OPERATORS._flash_attn_varlen_backward if lengths else _OPERATORS._flash_attn_backward
        operator(
            _whole_eights(grad),
            query,
            key,
            value,
            output,
            sums,
            *gradients,
            *lengths,
            *call.longest,
            *call.options,
            call.deterministic,
            random_state,
        )
        return (*(each[..., :head_size] for each in gradients), None, *(None for _ in lengths))


def _whole_eights(tensor: Tensor) -> Tensor:
    missing = -tensor.size(-1) % 8
    return pad(tensor, [0, missing]) if missing else tensor


def _options(  # noqa: PLR0917 - as the operators have them
    query: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
) -> tuple[Any, ...]:
    scale = query.size(-1) ** -0.5 if softmax_scale is None else softmax_scale
    return dropout_p, scale, causal, *window_size, softcap, alibi_slopes


def flash_attn_func(  # noqa: PLR0917 - the library's own signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention output of shape B×S×H×D for query, key and value of such shapes."""
    options = _options(q, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return _Attention.apply(q, k, v, _Call(options, deterministic, return_attn_probs))


def flash_attn_varlen_func(  # noqa: PLR0917 - the library's own signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attention output for packed sequences; query, key, value and output have the shape S×H×D."""
    if block_table is not None:
        _refuse("a cache in pages")
    options = _options(q, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    call = _Call(options, deterministic, return_attn_probs, (int(max_seqlen_q), int(max_seqlen_k)))
    return _Attention.apply(q, k, v, call, cu_seqlens_q, cu_seqlens_k)


def flash_attn_with_kvcache(
    q: Tensor,  # noqa: ARG001 - transformers asks for the names
    k_cache: Tensor,  # noqa: ARG001
    v_cache: Tensor,  # noqa: ARG001
    **_options: Any,
) -> Any:
    """Raises `UnsupportedError`: training does not decode with a KV cache."""
    _refuse("a cache of keys and values")


def _refuse(what: str) -> None:
    raise UnsupportedError(f"FlashAttention with {what} is not predicted: measure instead")
