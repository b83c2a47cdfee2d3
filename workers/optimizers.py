"""Optimizers by name, in each of the implementations that PyTorch has of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from workers.workload import OptimizerFactory, WorkloadError

_FACTORIES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "sgd-momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "loop": {"foreach": False},
}
# RMSprop has no fused kernel, and that of Adagrad is for the CPU alone (torch/optim/adagrad.py).
_WITH_FUSED_KERNEL = ("sgd", "sgd-momentum", "adam", "adamw")


def make_optimizer(
    optimizer: str | OptimizerFactory, params: Iterable[nn.Parameter], implementation: str = "default"
) -> torch.optim.Optimizer:
    """Makes the optimizer of a workload.

    Args:
        optimizer: one of `workers.protocol.OPTIMIZERS`, or a function of the parameters.
        params: the model's parameters, once they are where they are trained.
        implementation: one of `workers.protocol.OPTIMIZER_IMPLS`.

    Raises:
        WorkloadError: the function returned something else than an optimizer; it decides the
            implementation itself; or there is no such implementation.
    """
    if isinstance(optimizer, str):
        if implementation == "fused" and optimizer not in _WITH_FUSED_KERNEL:
            raise WorkloadError(
                f"PyTorch has no fused CUDA kernel for {optimizer}: use another optimizer_impl, "
                f"or one of {', '.join(_WITH_FUSED_KERNEL)}"
            )
        return _FACTORIES[optimizer](params, **_IMPLEMENTATIONS[implementation])
    if implementation != "default":
        raise WorkloadError(
            f"optimizer_impl {implementation} is for optimizers by name, and the workload makes its own: set "
            "foreach= or fused= in its function, or name an optimizer"
        )
    made: Any = optimizer(params)
    if not isinstance(made, torch.optim.Optimizer):
        raise WorkloadError(
            f"the workload's optimizer function returned {type(made).__name__}; "
            "return a torch.optim.Optimizer, or give one of the names"
        )
    return made
