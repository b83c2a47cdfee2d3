"""Names of PyTorch's operators and dtypes, as traces write them."""

from __future__ import annotations

import functools

import torch


@functools.cache
def name_of(func: torch._ops.OpOverload) -> str:
    """Name of an operator, without the overload `default`: `aten.addmm`, `aten.add.Tensor`."""
    return str(func).removesuffix(".default")


@functools.cache
def name_of_type(dtype: torch.dtype) -> str:
    """Name of a data type, such as `float16`."""
    return str(dtype).removeprefix("torch.")
