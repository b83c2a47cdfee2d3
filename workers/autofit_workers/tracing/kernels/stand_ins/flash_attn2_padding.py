"""Stand-in for `flash_attn.bert_padding`, which lays the tokens of a padded batch one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["pad_input", "unpad_input"]


class _Picked(torch.autograd.Function):
    """Rows by their numbers, gathered, as the library does, and not indexed."""

    @staticmethod
    def forward(context: Any, rows: Tensor, numbers: Tensor) -> Tensor:
        context.save_for_backward(numbers)
        context.num_rows = rows.size(0)
        flat = rows.reshape(rows.size(0), -1)
        picked = flat.gather(0, numbers.unsqueeze(1).expand(-1, flat.size(1)))
        return picked.reshape(-1, *rows.shape[1:])

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, None]:
        (numbers,) = context.saved_tensors
        flat = grad.reshape(grad.size(0), -1)
        spread = torch.zeros(context.num_rows, flat.size(1), device=flat.device, dtype=flat.dtype)
        spread.scatter_(0, numbers.unsqueeze(1).expand(-1, flat.size(1)), flat)
        return spread.reshape(context.num_rows, *grad.shape[1:]), None


class _Placed(torch.autograd.Function):
    """Rows in their places among rows of zeros."""

    @staticmethod
    def forward(context: Any, rows: Tensor, numbers: Tensor, num_rows: int) -> Tensor:
        context.save_for_backward(numbers)
        placed = torch.zeros(num_rows, *rows.shape[1:], device=rows.device, dtype=rows.dtype)
        placed[numbers] = rows
        return placed

    @staticmethod
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (numbers,) = context.saved_tensors
        return grad[numbers], None, None


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Tokens that a mask keeps, their numbers, bounds of sequences, the longest, and tokens in use."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    numbers = kept.flatten().nonzero().flatten()
    longest = int(lengths.max().item())
    bounds = pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    tokens: Tensor = _Picked.apply(hidden_states.flatten(0, 1), numbers)
    return tokens, numbers, bounds, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Padded batch with the tokens in their places."""
    placed: Tensor = _Placed.apply(hidden_states, indices, batch * seqlen)
    return placed.view(batch, seqlen, *placed.shape[1:])
