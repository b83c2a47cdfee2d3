"""Optimizers by name, with PyTorch's default implementation of each (foreach on a GPU)."""

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


def make_optimizer(
    optimizer: str | OptimizerFactory, params: Iterable[nn.Parameter]
) -> torch.optim.Optimizer:
    """Makes the optimizer of a workload.

    Args:
        optimizer: one of `workers.protocol.OPTIMIZERS`, or a function of the parameters.
        params: the model's parameters, once they are where they are trained.

    Raises:
        WorkloadError: the function returned something else than an optimizer.
    """
    if isinstance(optimizer, str):
        return _FACTORIES[optimizer](params)
    made: Any = optimizer(params)
    if not isinstance(made, torch.optim.Optimizer):
        raise WorkloadError(
            f"the workload's optimizer function returned {type(made).__name__}; "
            "return a torch.optim.Optimizer, or give one of the names"
        )
    return made
