"""Names of PyTorch's operators and dtypes, as traces write them."""

from __future__ import annotations

import functools

import torch

from autofit_workers.pytorch.operators import OpOverload


@functools.cache
def name_of(func: OpOverload) -> str:
    """Name of an operator, without the overload `default`; for example `aten.addmm`, `aten.add.Tensor`."""
    return str(func).removesuffix(".default")


@functools.cache
def name_of_type(dtype: torch.dtype) -> str:
    """Name of a dtype without `torch.`, such as `float16`."""
    return str(dtype).removeprefix("torch.")
