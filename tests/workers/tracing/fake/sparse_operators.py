"""Runs operators on sparse tensors on the CPU and on a fake GPU, and prints where they differ.

Run it in a process of its own: `fake_gpu.install` is for good.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofit_workers.tracing.fake import fake_gpu

torch.manual_seed(0)
INDICES = torch.tensor([[0, 1, 1, 2, 1], [2, 0, 2, 3, 0]])  # the fifth is the second again
VALUES = torch.arange(1.0, 6.0)
COO = torch.sparse_coo_tensor(INDICES, VALUES, (3, 4))
CSR = torch.sparse_csr_tensor(torch.tensor([0, 1, 3, 4]), torch.tensor([2, 0, 2, 3]), VALUES[:4], (3, 4))
BLOCKS = torch.zeros(4, 6)
BLOCKS[:2, :2] = 1
BLOCKS[2:, 4:] = 1
RIGHT, LEFT, BATCH = torch.randn(4, 5), torch.randn(5, 3), torch.randn(2, 4, 5)

Place = Callable[[Tensor], Tensor]


def _with_gradient(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _gradients(result: Callable[..., Tensor], *leaves: Tensor) -> list[Tensor | None]:
    given = [_with_gradient(each) for each in leaves]
    result(*given).sum().backward()
    return [each.grad for each in given]


def _pattern(indices: Tensor, values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, (3, 4))


OPERATORS: dict[str, Callable[[Place], Any]] = {
    "parts": lambda at: (at(COO)._indices(), at(COO)._values(), at(COO)._nnz(), at(COO).is_coalesced()),
    "coalesced": lambda at: (at(COO).coalesce(), at(COO).coalesce().is_coalesced()),
    "coalesced indices": lambda at: at(COO).coalesce().indices().tolist(),
    "transposed": lambda at: at(COO).t(),
    "clone": lambda at: at(COO).clone(),
    "double": lambda at: at(COO).double(),
    "dense": lambda at: at(COO).to_dense(),
    "times a number": lambda at: at(COO) * 2,
    "over a number": lambda at: at(COO) / 2,
    "times a dense one": lambda at: at(COO).coalesce() * at(COO.to_dense()),
    "root": lambda at: at(COO).sqrt(),
    "sum of two": lambda at: (at(COO) + at(COO)).coalesce(),  # which the CPU merges at once
    "dense and sparse": lambda at: at(COO.to_dense()) + at(COO),
    "joined": lambda at: torch.cat([at(COO), at(COO)]),
    "mask": lambda at: at(COO.to_dense()).sparse_mask(at(COO).coalesce()),
    "summed": lambda at: (torch.sparse.sum(at(COO)), torch.sparse.sum(at(COO), 1)),
    "softmax": lambda at: torch.sparse.softmax(at(COO), 1),
    "product": lambda at: (torch.sparse.mm(at(COO), at(RIGHT)), at(COO) @ at(RIGHT)),
    "product with a vector": lambda at: at(COO).mv(at(RIGHT)[:, 0]),
    "from the left": lambda at: (at(LEFT) @ at(COO)),
    "added product": lambda at: torch.addmm(at(LEFT.t()).new_zeros(3, 5), at(COO), at(RIGHT), beta=2.0),
    "batch": lambda at: torch.bmm(torch.stack([at(COO.to_dense())] * 2).to_sparse(), at(BATCH)).shape,
    "of a dense one": lambda at: at(COO.to_dense()).to_sparse(),
    "as rows": lambda at: at(COO).to_sparse_csr(),
    "as columns": lambda at: at(COO).to_sparse_csc(),
    "rows": lambda at: (at(CSR), at(CSR).values(), at(CSR)._nnz()),
    "indices of rows": lambda at: (at(CSR).crow_indices(), at(CSR).col_indices()),
    "rows transposed": lambda at: at(CSR).t(),
    "rows times": lambda at: (at(CSR) @ at(RIGHT), at(CSR).mv(at(RIGHT)[:, 0]), at(CSR) * 2),
    "columns times": lambda at: at(CSR).to_sparse_csc() @ at(RIGHT),
    "times rows": lambda at: at(LEFT) @ at(CSR),
    "rows as coordinates": lambda at: at(CSR).to_sparse(),
    "rows as dense": lambda at: at(CSR).to_dense(),
    "rows of a dense one": lambda at: at(COO.to_dense()).to_sparse_csr(),
    "blocks": lambda at: at(BLOCKS).to_sparse_bsr((2, 2)),
    "blocks as dense": lambda at: at(BLOCKS).to_sparse_bsr((2, 2)).to_dense(),
    "gradients of a product": lambda at: _gradients(
        lambda values, right: torch.sparse.mm(_pattern(at(INDICES), values), right), at(VALUES), at(RIGHT)
    ),
    "gradients of softmax": lambda at: _gradients(
        lambda values: torch.sparse.softmax(_pattern(at(INDICES), values), 1).to_dense(), at(VALUES)
    ),
    "gradient of rows": lambda at: _gradients(lambda right: at(CSR) @ right, at(RIGHT)),
    "gradient of a lookup": lambda at: _gradients(
        lambda weight: torch.nn.functional.embedding(at(INDICES[0]), weight, sparse=True), at(RIGHT)
    ),
    "gradients of two lookups": lambda at: _gradients(
        lambda weight: sum(
            torch.nn.functional.embedding(at(each), weight, sparse=True).sum() for each in INDICES
        ),
        at(RIGHT),
    ),
}  # fmt: skip


def described(value: Any) -> Any:
    """Description of a result: of a tensor its shape, dtype, layout and number of stored elements."""
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    if not isinstance(value, Tensor):
        return value
    num = value._nnz() if value.layout is not torch.strided else 0
    return [list(value.shape), str(value.dtype), str(value.layout), num]


def main() -> None:
    """Prints a line for each operator whose results on the fake GPU have another description."""
    torch.sparse.check_sparse_tensor_invariants.disable()
    expected = {name: described(run(lambda tensor: tensor)) for name, run in OPERATORS.items()}
    fake_gpu.install()
    mode = fake_gpu.FakeGpuMode(lambda *_call: None)
    for name, run in OPERATORS.items():
        with mode, torch.autograd.set_multithreading_enabled(False):
            found = described(run(lambda tensor: tensor.cuda()))
        if found != expected[name]:
            sys.stdout.write(f"{name}: {found} instead of {expected[name]}\n")
    sys.stdout.write(f"{len(OPERATORS)} compared\n")


if __name__ == "__main__":
    main()
