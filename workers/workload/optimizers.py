"""Optimizers: by name, in each of the implementations that PyTorch has of them, or a workload's own."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from workers.errors import DeviceError
from workers.workload.workload import OptimizerFactory, Optimizers, Workload, WorkloadError

EIGHT_BIT = "adamw8bit"
_EIGHT_BIT_PACKAGE = "bitsandbytes"


def eight_bit_library() -> ModuleType:
    """The library of the optimizer with states of 8 bits.

    Raises:
        DeviceError: it is not installed here.
    """
    try:
        return importlib.import_module(_EIGHT_BIT_PACKAGE)
    except ModuleNotFoundError as error:
        if error.name != _EIGHT_BIT_PACKAGE:
            raise
        raise DeviceError(
            f"{EIGHT_BIT} is an optimizer of {_EIGHT_BIT_PACKAGE}, which is not installed where trials run: "
            f"pip install {_EIGHT_BIT_PACKAGE}"
        ) from error


def _eight_bit(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = eight_bit_library().optim.AdamW8bit(params)
    return made


_FACTORIES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "sgd-momentum": functools.partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    EIGHT_BIT: _eight_bit,
}
_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "loop": {"foreach": False},
}
# RMSprop has no fused kernel, and that of Adagrad is for the CPU alone (torch/optim/adagrad.py).
_WITH_FUSED_KERNEL = ("sgd", "sgd-momentum", "adam", "adamw")


def each_of(optimizers: Optimizers) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers of a workload: one, or several for a step of its own."""
    return (optimizers,) if isinstance(optimizers, torch.optim.Optimizer) else tuple(optimizers)


def make_optimizers(workload: Workload, model: nn.Module, implementation: str = "default") -> Optimizers:
    """Makes what a workload trains its model with.

    Args:
        model: once it is where it is trained.
        implementation: one of `workers.knobs.optimizer_impl.OPTIMIZER_IMPLS`.

    Raises:
        WorkloadError: as of `make_optimizer`; or there are several optimizers, and no step that says what
            each of them does.
    """
    given: Any = model if _takes_model(workload.optimizer) else model.parameters()
    made = make_optimizer(workload.optimizer, given, implementation)
    if workload.step is None and not isinstance(made, torch.optim.Optimizer):
        raise WorkloadError(
            f"the workload's optimizer function returned {len(made)} optimizers: give the workload a "
            "step(model, optimizers, batch) that uses each of them, or return one"
        )
    return made


def _takes_model(optimizer: str | OptimizerFactory) -> bool:
    """Whether a workload's own function calls its parameter `model`, else it takes the parameters."""
    if isinstance(optimizer, str):
        return False
    try:
        return next(iter(inspect.signature(optimizer).parameters)) == "model"
    except (StopIteration, TypeError, ValueError):  # no parameter at all, or a callable that C made
        return False


def make_optimizer(
    optimizer: str | OptimizerFactory, params: Iterable[nn.Parameter], implementation: str = "default"
) -> Optimizers:
    """Makes an optimizer by name, or what a workload's own function makes.

    Args:
        optimizer: one of `workers.knobs.optimizer.OPTIMIZERS`, or a function of the parameters.
        params: the model's parameters, once they are where they are trained.
        implementation: one of `workers.knobs.optimizer_impl.OPTIMIZER_IMPLS`.

    Raises:
        WorkloadError: the function returned something else than an optimizer or several; it decides
            the implementation itself; or there is no such implementation.
        DeviceError: its library is not installed here.
    """
    if isinstance(optimizer, str):
        if implementation == "fused" and optimizer not in _WITH_FUSED_KERNEL:
            raise WorkloadError(
                f"PyTorch has no fused CUDA kernel for {optimizer}: use another optimizer_impl, "
                f"or one of {', '.join(_WITH_FUSED_KERNEL)}"
            )
        if optimizer == EIGHT_BIT and implementation != "default":
            raise WorkloadError(f"{EIGHT_BIT} has only its own implementation: leave out optimizer_impl")
        return _FACTORIES[optimizer](params, **_IMPLEMENTATIONS[implementation])
    if implementation != "default":
        raise WorkloadError(
            f"optimizer_impl {implementation} is for optimizers given by name, but the workload makes its "
            "own: set foreach= or fused= in its function, or name an optimizer"
        )
    made: Any = optimizer(params)
    several = made if isinstance(made, tuple | list) else [made]
    if not several or not all(isinstance(each, torch.optim.Optimizer) for each in several):
        raise WorkloadError(
            f"the workload's optimizer function returned {type(made).__name__}; "
            "return a torch.optim.Optimizer or a tuple of them, or give one of the names"
        )
    return made if isinstance(made, torch.optim.Optimizer) else tuple(made)
