"""Workload of GPT-2, the smallest model of the family.

A. Radford, J. Wu, R. Child, D. Luan, D. Amodei, I. Sutskever, 2019: "Language Models are Unsupervised
Multitask Learners", section 2.3 and table 2. The paper's table says 117M parameters; counting the
released model gives 124M. Weights keep PyTorch's default initialisation, on which memory does
not depend.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit_workers.workload.workload import Workload

CONTEXT = 1024
VOCABULARY = 50257
_DROPOUT = 0.1


class Attention(nn.Module):
    """Causal self-attention over B×T×width."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.num_heads, width // self.num_heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=_DROPOUT if self.training else 0.0, is_causal=True
        )
        out: Tensor = self.dropout(self.projection(y.transpose(1, 2).reshape(batch, length, width)))
        return out


class Block(nn.Module):
    """Transformer block: attention and a feed-forward layer, each with layer norm and shortcut."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
            nn.Dropout(_DROPOUT),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class GPT2(nn.Module):
    """GPT-2: maps B×T tokens to B×T×vocabulary logits; the output layer is the token embedding.

    As a stage of a pipeline it lacks parts: without the first part it takes B×T×width, without the last it
    returns B×T×width.
    """

    pp_plan = ("tokens", "positions", "dropout", "blocks", "norm", "tokens")

    def __init__(
        self,
        *,
        num_layers: int = 12,
        num_heads: int = 12,
        width: int = 768,
        context: int = CONTEXT,
        vocabulary: int = VOCABULARY,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(_DROPOUT)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens
        if self.positions is not None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.dropout(self.tokens(tokens) + self.positions(positions))
        x = self.blocks(x)
        return x if self.norm is None else functional.linear(self.norm(x), self.tokens.weight)


def _make_batch(batch_size: int, device: torch.device) -> Tensor:
    """Batch of random tokens, one more than the context, so that every position has a next token."""
    return torch.randint(VOCABULARY, (batch_size, CONTEXT + 1), device=device)


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Cross entropy of each token given the tokens before it.

    The tokens are shifted rather than the logits: slicing logits would copy 200 MB per sequence.
    """
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


gpt2 = Workload(
    build_model=GPT2, make_batch=_make_batch, loss=next_token_loss, optimizer="adamw", name="gpt2"
)
