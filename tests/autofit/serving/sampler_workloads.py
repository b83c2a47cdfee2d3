"""Samplers of a server as workloads, which a child traces by this file."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from autofit_workers.workload.workload import Workload

TOKENS, SEQS, HIDDEN, VOCABULARY = 512, 256, 64, 8192


def in_float32(logits: Tensor) -> Tensor:
    """Samples tokens by top-k, then top-p, in float32; sorted logits are scattered back."""

    def cut(given: Tensor) -> Tensor:
        ordered, places = given.sort(dim=-1)
        ordered.masked_fill_(ordered < ordered[:, :1], -1e9)
        sums = ordered.softmax(dim=-1)
        sums_so_far = sums.cumsum(dim=-1)
        ordered.masked_fill_(sums_so_far <= 0.01, -1e9)
        return torch.empty_like(ordered).scatter_(dim=-1, index=places, src=ordered)

    kept = cut(logits.float())
    chances = kept.softmax(dim=-1)
    logarithms = kept.log_softmax(dim=-1)
    noise = torch.empty_like(chances).exponential_()
    return chances.div_(noise).argmax(dim=-1) + logarithms[:, 0].long()


def in_half(logits: Tensor) -> Tensor:
    """Samples tokens by top-p, then top-k, in the logits' dtype; the sorted places bring logits back."""

    def cut(given: Tensor) -> Tensor:
        ordered, places = given.sort(dim=-1, descending=True)
        sums = ordered.softmax(dim=-1)
        sums_so_far = sums.cumsum(dim=-1)
        beyond = sums_so_far > 0.99
        ordered.masked_fill_(beyond, -1e4)
        last = torch.ones_like(beyond)
        ordered.masked_fill_(last, -1e4)
        return torch.gather(ordered, dim=-1, index=torch.argsort(places, dim=-1))

    kept = cut(logits)
    chances = kept.softmax(dim=-1, dtype=torch.float32)
    logarithms = kept.log_softmax(dim=-1, dtype=torch.float32)
    return chances.argmax(dim=-1) + logarithms[:, 0].long()


class Head(nn.Module):
    """The end of a model: hidden states of the last tokens become logits, and logits tokens."""

    def __init__(self, sample: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=torch.bfloat16)
        self.sample = sample

    def forward(self, hidden: Tensor) -> Tensor:
        return self.sample(self.head(hidden[:SEQS]))


def _sampling(sample: Callable[[Tensor], Tensor]) -> Workload:
    return Workload(
        build_model=lambda: Head(sample),
        make_batch=lambda size, device: torch.zeros((size, HIDDEN), dtype=torch.bfloat16, device=device),
        loss=lambda model, batch: model(batch),
        mode="infer",
        name="a sampler",
    )


of_float32, of_half = _sampling(in_float32), _sampling(in_half)
