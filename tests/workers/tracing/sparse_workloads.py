"""Workloads of sparse layouts, each small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autofit import Workload

NODES, EDGES, WIDTH, HIDDEN = 3000, 24_000, 32, 64
TWICE = 500  # edges that are there twice
ROWS = 50_000  # of an embedding
TOKENS = 7  # of a sample

_numbers = torch.arange(EDGES)
PLACES = torch.stack([_numbers % NODES, (_numbers * 7 + _numbers // NODES) % NODES])
PLACES[:, -TWICE:] = PLACES[:, :TWICE]


def _coordinates() -> Tensor:
    return torch.sparse_coo_tensor(PLACES, torch.ones(EDGES), (NODES, NODES))


def _rows() -> Tensor:
    every = EDGES // NODES
    return torch.sparse_csr_tensor(
        torch.arange(0, EDGES + 1, every), PLACES[1], torch.ones(EDGES), (NODES, NODES)
    )


class Layer(nn.Module):
    """A layer of a graph network, which has its graph as a buffer."""

    def __init__(self, graph: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("graph", graph, persistent=False)
        self.weight = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.graph, self.weight(x))


def _layer(graph: Callable[[], Tensor], product: Callable[[Tensor, Tensor], Tensor]) -> Workload:
    return Workload(
        build_model=lambda: Layer(graph(), product),
        make_batch=lambda batch_size, device: torch.randn(batch_size, NODES, WIDTH, device=device),
        loss=lambda model, batch: model(batch[0]).square().mean(),
        optimizer="sgd",
    )


by_rows = _layer(_rows, torch.matmul)
by_coordinates = _layer(_coordinates, torch.sparse.mm)
in_halves = _layer(lambda: _coordinates().half(), lambda graph, x: torch.sparse.mm(graph, x.half()))
picks = _layer(_coordinates, lambda graph, x: graph.index_select(0, torch.arange(3, device=x.device)) @ x)


without_a_size = _layer(
    _coordinates,
    lambda graph, x: torch.sparse_coo_tensor(x.argmax(1).repeat(2, 1), x[:, 0].abs()).to_dense() @ x,
)


class Lookup(nn.Module):
    """A lookup of tokens in a large table with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)


def _tokens(batch_size: int, device: Any) -> Tensor:
    """Makes a batch whose samples are equal, and whose tokens within a sample all differ."""
    return torch.arange(TOKENS).repeat(batch_size, 1).to(device)


lookup = Workload(
    build_model=Lookup,
    make_batch=_tokens,
    loss=lambda model, batch: model(batch).square().mean(),
    optimizer=lambda params: torch.optim.SparseAdam(list(params)),
)
