"""Workloads whose steps call operators that are not PyTorch's; a child traces them by this file.

The samples are vectors of 16 numbers; the tests beside this file say what each workload allocates.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import autofit

WIDTH = 16


@torch.library.custom_op("tests_kernels::with_shapes", mutates_args=())
def _with_shapes(rows: Tensor, scale: float = 2.0) -> Tensor:
    return rows * scale


@torch.library.custom_op("tests_kernels::stranger", mutates_args=())
def _stranger(rows: Tensor) -> Tensor:
    raise RuntimeError("compiled code, which is not there")


@torch.library.custom_op("tests_kernels::without_shapes", mutates_args=())
def _without_shapes(rows: Tensor, *, factor: int = 3) -> tuple[Tensor, Tensor]:
    return rows.repeat(factor, 1), rows.sum(1)


@torch.library.custom_op("tests_kernels::nameless", mutates_args=())
def _nameless(rows: Tensor, scale: float) -> Tensor:
    raise RuntimeError("compiled code, which is not there")


@torch.library.custom_op("tests_kernels::wrong", mutates_args=())
def _wrong(rows: Tensor) -> Tensor:
    return rows.clone()


for _operator in (_stranger, _wrong):
    _operator.register_autograd(lambda _ctx, grad: grad)
_with_shapes.register_autograd(lambda _ctx, grad: (grad, None))
_with_shapes.register_fake(lambda rows, scale=2.0: torch.empty_like(rows))
_stranger.register_fake(torch.empty_like)

autofit.register_kernel("tests_kernels::with_shapes", scratch=lambda rows, scale: (3 * rows.nbytes, 0, 4096))
autofit.register_kernel(
    "tests_kernels::without_shapes",
    outputs=lambda rows, factor: (rows.new_empty(factor * len(rows), WIDTH), rows.new_empty(len(rows))),
)
autofit.register_kernel("tests_kernels::wrong.default", outputs=lambda rows: (rows, rows))


def _rows(batch_size: int, device: torch.device) -> Tensor:
    return torch.randn(batch_size, WIDTH, device=device)


def _workload(loss) -> autofit.Workload:
    return autofit.Workload(build_model=lambda: nn.Linear(WIDTH, WIDTH), make_batch=_rows, loss=loss)


known = _workload(lambda model, rows: _with_shapes(model(rows)).mean())
stranger = _workload(lambda model, rows: _stranger(_stranger(model(rows))).mean())
nameless = _workload(lambda model, rows: _nameless(model(rows), 2.0).mean())
wrong = _workload(lambda model, rows: _wrong(model(rows)).mean())


def _beside(model: nn.Module, rows: Tensor) -> Tensor:
    repeated, sums = _without_shapes(rows)
    return model(rows).mean() + repeated.mean() + sums.mean()


followed = _workload(_beside)
