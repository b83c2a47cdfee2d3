"""Copies of a model that share its parameters or have no data, and tensors on the device `meta`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from autofit_workers.pytorch.dispatch import disable_current_modes


class LeftOut(nn.Identity):
    """Identity in place of a module outside the repeated blocks that another pipeline stage runs."""


def with_parts(model: nn.Module, parts: Mapping[str, nn.Module | None]) -> nn.Module:
    """Copy of a model with some parts, given by name, replaced; all others are shared with the model."""
    clone = _shallow(model)
    made = {"": clone}
    for name, part in parts.items():
        path = name.split(".")
        for depth in range(1, len(path)):
            parent, own = made[".".join(path[: depth - 1])], ".".join(path[:depth])
            if own not in made:
                made[own] = _shallow(parent.get_submodule(path[depth - 1]))
                setattr(parent, path[depth - 1], made[own])
        setattr(made[".".join(path[:-1])], path[-1], part)
    return clone


def _shallow(module: nn.Module) -> nn.Module:
    clone = copy.copy(module)
    vars(clone)["_modules"] = dict(vars(module)["_modules"])
    return clone


def without_data(model: nn.Module) -> nn.Module:
    """Copy of a model whose parameters and buffers are on the device `meta`: shapes without data."""
    with disable_current_modes():
        tensors = [*model.parameters(), *model.buffers()]
        memo: dict[int, Any] = {id(each): nowhere(each.shape, each.dtype) for each in tensors}
        memo |= {
            id(each): nn.Parameter(memo[id(each)].detach(), each.requires_grad) for each in model.parameters()
        }
        return copy.deepcopy(model, memo)


def nowhere(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Tensor on the device `meta`, made outside all active modes.

    It requires gradients if its dtype is a floating-point one.
    """
    with disable_current_modes():
        return torch.empty(shape, dtype=dtype, device="meta", requires_grad=dtype.is_floating_point)
