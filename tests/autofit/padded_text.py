"""Workloads of a text classifier with padded batches: typical ones, and the worst."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import autofit

# Tokens of the texts of a corpus: many short ones, and a few of four times that.
LENGTHS = autofit.worst_case_lengths([40, 44, 48, 52, 56, 60, 64, 72] * 4000 + [256] * 3, multiple=8)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        self.block = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.head = nn.Linear(128, 2)

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)).mean(dim=1))


def _make_batch(batch_size, device, *, kind="typical"):
    tokens = torch.randint(1000, (batch_size, LENGTHS.of(kind, batch_size)), device=device)
    return tokens, torch.zeros(batch_size, dtype=torch.long, device=device)


def _loss(model, batch):
    tokens, labels = batch
    return functional.cross_entropy(model(tokens), labels)


workload = autofit.Workload(build_model=Classifier, make_batch=_make_batch, loss=_loss, optimizer="adam")


def _fixed_batch(batch_size, device, kind):
    num_tokens = {"typical": 64, "worst": 256}[kind]
    return torch.zeros(batch_size, num_tokens, dtype=torch.long, device=device), torch.zeros(
        batch_size, dtype=torch.long, device=device
    )


# The same lengths whatever the batch size, so that a curve over all sizes is known from three traces.
padded_alike = autofit.Workload(build_model=Classifier, make_batch=_fixed_batch, loss=_loss, optimizer="adam")
