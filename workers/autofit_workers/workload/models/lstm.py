"""Workload of an LSTM language model.

W. Zaremba, I. Sutskever, O. Vinyals, 2014: "Recurrent Neural Network Regularization", section 4.1, the
large model: two layers of 1500 units, unrolled for 35 words of a vocabulary of 10,000, with
dropout of 65 % on all but the recurrent connections. Every sequence begins with a state of zeros,
and gradients are not clipped; the peak depends on neither.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from autofit_workers.workload.workload import Workload

NUM_STEPS = 35
VOCABULARY = 10_000
_DROPOUT = 0.65


class LanguageModel(nn.Module):
    """LSTM that maps T×B words to T×B×vocabulary logits of the next words."""

    def __init__(self, *, vocabulary: int = VOCABULARY, width: int = 1500, num_layers: int = 2) -> None:
        super().__init__()
        self.dropout = nn.Dropout(_DROPOUT)
        self.words = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, num_layers=num_layers, dropout=_DROPOUT)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.recurrent(self.dropout(self.words(words)))
        logits: Tensor = self.output(self.dropout(states))
        return logits


def _make_batch(batch_size: int, device: torch.device) -> Tensor:
    """Batch of random words, one more than the unrolled steps, so that every word has a next one."""
    return torch.randint(VOCABULARY, (NUM_STEPS + 1, batch_size), device=device)


def next_word_loss(model: nn.Module, words: Tensor) -> Tensor:
    """Cross entropy of each word given the words before it."""
    logits = model(words[:-1])
    return functional.cross_entropy(logits.flatten(0, 1), words[1:].flatten())


lstm = Workload(
    build_model=LanguageModel, make_batch=_make_batch, loss=next_word_loss, optimizer="sgd", name="lstm"
)
