"""Workloads with attention by FlashAttention's functions, whose stand-ins need no installation.

Batches have 200 tokens and 8 query heads, two to a key, of 36 numbers each, a size that is padded to 40.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from autofit_workers.tracing.kernels.stand_ins import flash_attn2, flash_attn3
from autofit_workers.tracing.kernels.stand_ins.flash_attn2_padding import pad_input, unpad_input
from autofit_workers.tracing.kernels.stand_ins.flash_attn2_rotary import apply_rotary_emb
from autofit_workers.workload.workload import Workload

ROWS, HEADS, KEY_HEADS, SIZE = 200, 8, 4, 36
KEPT = 150  # tokens of a padded sequence


class Attention(nn.Module):
    """Layers for queries, keys and values, and a function `attend` of their outputs."""

    def __init__(self, attend, size: int = SIZE, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.attend, self.size = attend, size
        heads = (HEADS, KEY_HEADS, KEY_HEADS)
        self.layers = nn.ModuleList(nn.Linear(1, count * size, dtype=dtype) for count in heads)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = (layer(tokens).unflatten(-1, (-1, self.size)) for layer in self.layers)
        attended: Tensor = self.attend(query, key, value)
        return attended


def _packed(attend, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    batch = len(query)
    mask = torch.zeros(batch, ROWS, dtype=torch.int64)
    mask[:, :KEPT] = 1
    mask = mask.to(query.device)
    query, numbers, bounds, longest, _ = unpad_input(query, mask)
    key, value = (unpad_input(each, mask)[0] for each in (key, value))
    attended = attend(query, key, value, bounds, bounds, longest, longest, causal=True)
    return pad_input(attended, numbers, batch, ROWS)


def _rotated(inplace: bool, query: Tensor, _key: Tensor, _value: Tensor) -> Tensor:
    halves = [torch.ones(ROWS, SIZE, device=query.device)[:, : SIZE // 2] for _ in range(2)]
    return apply_rotary_emb(query * 2, *halves, inplace=inplace)


def _workload(attend, **options) -> Workload:
    dtype = options.get("dtype", torch.bfloat16)
    return Workload(
        build_model=functools.partial(Attention, attend, **options),
        make_batch=lambda batch_size, device: torch.randn(batch_size, ROWS, 1, device=device).to(dtype),
        loss=lambda model, tokens: model(tokens).mean(),
    )


def _of_pytorch(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention by PyTorch's own efficient kernel, called as xformers calls it."""
    key, value = (each.repeat_interleave(HEADS // KEY_HEADS, 2) for each in (key, value))
    operator = torch.ops.aten._efficient_attention_forward
    return operator(query, key, value, None, None, None, None, None, 0.0, 1, True)[0]


efficient = _workload(_of_pytorch, size=40)
fa2 = _workload(functools.partial(flash_attn2.flash_attn_func, causal=True))
dropping = _workload(functools.partial(flash_attn2.flash_attn_func, dropout_p=0.1))
ordered = _workload(functools.partial(flash_attn2.flash_attn_func, deterministic=True))
packed_fa2 = _workload(functools.partial(_packed, flash_attn2.flash_attn_varlen_func))
fa3 = _workload(functools.partial(flash_attn3.flash_attn_func, causal=True), size=128)
packed_fa3 = _workload(functools.partial(_packed, flash_attn3.flash_attn_varlen_func), size=128)
in_fp32 = _workload(flash_attn2.flash_attn_func, dtype=torch.float32)
too_wide = _workload(flash_attn2.flash_attn_func, size=264)
odd_fa3 = _workload(flash_attn3.flash_attn_func)
rotated = _workload(functools.partial(_rotated, False))
rotated_in_place = _workload(functools.partial(_rotated, True))
