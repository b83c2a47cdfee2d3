"""Stand-in for `flash_attn.bert_padding`, which packs the tokens of a padded batch and pads them again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["pad_input", "unpad_input"]


class _Picked(torch.autograd.Function):
    """Autograd function that selects rows of a tensor by index, with `gather` as the library does."""

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
    """Autograd function that writes rows to given indices of a tensor of zeros."""

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
    """Tokens that a mask keeps, as the library returns them.

    Returns:
        The tokens; their indices in the flattened batch; cumulative sequence lengths; the longest sequence
        length; and the number of tokens of each sequence that `attention_mask` keeps.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    numbers = kept.flatten().nonzero().flatten()
    longest = int(lengths.max().item())
    bounds = pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    tokens: Tensor = _Picked.apply(hidden_states.flatten(0, 1), numbers)
    return tokens, numbers, bounds, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Padded batch of shape `batch` × `seqlen` × …, with each packed token at its index."""
    placed: Tensor = _Placed.apply(hidden_states, indices, batch * seqlen)
    return placed.view(batch, seqlen, *placed.shape[1:])
