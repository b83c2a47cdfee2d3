"""Batches of tokens with labels for models of transformers, in each batch layout.

    full            input_ids   a a a a a a        no token is masked
                                b b b b b b
    padded:50                   a a a . . .        attention_mask 1 1 1 0 0 0, labels of padding -100
                                b b b . . .
    packed:2                    a a a A A A        position_ids 0 1 2 0 1 2
                                b b b B B B
    padding-free    a a a a a a b b b b b b        position_ids 0 1 2 3 4 5 0 1 2 3 4 5

Packed sequences have no attention_mask: transformers finds them by their positions, from which it makes
a mask, or the bounds of sequences for FlashAttention if there is one row (`find_packed_sequence_indices`,
`_is_packed_sequence` of transformers 5). The row of all samples is what its `DataCollatorWithFlattening`
makes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs.batch_layout import Layout, split_layout
from autofit_workers.workload.libraries.transformers_releases import text_config_of

Batch = dict[str, Tensor]
# Number of tokens of each sample in a batch of one row; it stays on the CPU, and no model gets it.
LENGTHS = "seq_lengths"
_IGNORED = -100  # label that the loss ignores


def tokens_with_labels(
    batch_size: int, device: torch.device, *, config: Any, size: int, layout: str = "full"
) -> Batch:
    """Batch of tokens and labels, for a language model with its own loss.

    Args:
        size: tokens of a sample, padding included.
        layout: a value of the knob `batch_layout`.

    Raises:
        InapplicableError: a sample has fewer tokens than the sequences to pack in it.
    """
    parts = split_layout(layout)
    shape, vocabulary = (batch_size, size), text_config_of(config).vocab_size
    if parts.num_packed > 1 or parts.is_flattened:
        if parts.num_packed > size:
            raise InapplicableError(
                f"batch_layout {layout} packs more sequences than a sample has tokens ({size}): pack "
                "fewer, or give a longer --seq-len"
            )
        return _packed(shape, device, vocabulary, parts)
    batch = {
        "input_ids": torch.randint(vocabulary, shape, device=device),
        "attention_mask": torch.ones(shape, dtype=torch.int64, device=device),
        "labels": torch.randint(vocabulary, shape, device=device),
    }
    if parts.percent_padded:
        num_kept = max(1, size - size * parts.percent_padded // 100)
        batch["attention_mask"][:, num_kept:] = 0
        batch["labels"][:, num_kept:] = _IGNORED
    return batch


def unpackable_tokens(
    batch_size: int, device: torch.device, *, config: Any, size: int, layout: str = "full"
) -> Batch:
    """Batch of tokens and labels, for a model that cannot take several sequences packed in a sample.

    Raises:
        InapplicableError: `layout` packs or flattens sequences.
    """
    parts = split_layout(layout)
    if parts.num_packed > 1 or parts.is_flattened:
        raise InapplicableError(
            f"batch_layout {layout} is for causal language models, which {config.model_type} is not here: "
            "choose full or padded:PERCENT"
        )
    return tokens_with_labels(batch_size, device, config=config, size=size, layout=layout)


def _packed(shape: tuple[int, int], device: torch.device, vocabulary: int, layout: Layout) -> Batch:
    """Batch of tokens in which several sequences are packed into a sample or a row."""
    batch_size, num_tokens = shape
    # Made on the CPU, as a collator does, so that the bounds of sequences are known.
    tokens = torch.arange(num_tokens)
    sequence_of = tokens * layout.num_packed // num_tokens
    first_of = -(-sequence_of * num_tokens // layout.num_packed)
    positions = (tokens - first_of).repeat(batch_size, 1)
    lengths = {}
    if layout.is_flattened:
        lengths = {LENGTHS: torch.full((batch_size,), num_tokens)}
        shape, positions = (1, batch_size * num_tokens), positions.reshape(1, -1)
    return {
        "input_ids": torch.randint(vocabulary, shape, device=device),
        "position_ids": positions.to(device),
        "labels": torch.randint(vocabulary, shape, device=device),
        **lengths,
    }
