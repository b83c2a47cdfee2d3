"""Names of PyTorch's operators and dtypes, as traces write them."""

from __future__ import annotations

import functools

import torch

from autofit_workers.pytorch.operators import OpOverload

_COMPILED = "_orig_mod"  # name by which the wrapper that `torch.compile` returns holds a module


@functools.cache
def name_of(func: OpOverload) -> str:
    """Name of an operator, without the overload `default`; for example `aten.addmm`, `aten.add.Tensor`."""
    return str(func).removesuffix(".default")


@functools.cache
def name_of_type(dtype: torch.dtype) -> str:
    """Name of a dtype without `torch.`, such as `float16`."""
    return str(dtype).removeprefix("torch.")


def without_wrappers(path: str) -> str:
    """Path of a module or parameter without the wrappers of `torch.compile` that lead to it."""
    return ".".join(part for part in path.split(".") if part != _COMPILED) if _COMPILED in path else path
