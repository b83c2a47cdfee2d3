"""Makes optimizers by name, in each of PyTorch's implementations, or by a workload's own function."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from autofit_workers.spec.errors import MissingLibraryError
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.workloads.references import WorkloadError
from autofit_workers.workload.hidden_weights import hidden_weights
from autofit_workers.workload.workload import OptimizerFactory, Optimizers, Workload

MakeOptimizer = Callable[..., torch.optim.Optimizer]
_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "default": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "loop": {"foreach": False},
}


def require_library(optimizer: str) -> None:
    """Imports the library of a named optimizer.

    Raises:
        MissingLibraryError: the library is not installed, or has no such optimizer.
    """
    _class_of(NAMED[optimizer].path, optimizer)


def _class_of(path: str, name: str) -> MakeOptimizer:
    """Class at a path, such as `torch.optim.Adam`, for the optimizer `name`."""
    library, distribution = NAMED[name].library, NAMED[name].distribution
    module, _, attribute = path.rpartition(".")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise MissingLibraryError(
            f"{name} is an optimizer of {library}, which is not installed where trials run: "
            f"pip install {distribution}"
        ) from error
    if not hasattr(found, attribute):
        version = getattr(importlib.import_module(library), "__version__", "")
        raise MissingLibraryError(
            f"{name} is {path}, which {library} {version} does not have: "
            f"pip install --upgrade {distribution or library}"
        )
    made: MakeOptimizer = getattr(found, attribute)
    return made


def each_of(optimizers: Optimizers) -> tuple[torch.optim.Optimizer, ...]:
    """Optimizers of a workload as a tuple, be it one optimizer or several."""
    return (optimizers,) if isinstance(optimizers, torch.optim.Optimizer) else tuple(optimizers)


def make_optimizers(workload: Workload, model: nn.Module, implementation: str = "default") -> Optimizers:
    """Makes the optimizer or optimizers that a workload trains its model with.

    Args:
        model: the model, already on the device that it is trained on.
        implementation: one of `autofit_workers.spec.knobs.optimizer_impl.OPTIMIZER_IMPLS`.

    Raises:
        WorkloadError: `make_optimizer` raises it; or there are several optimizers, but the workload has no
            step of its own that uses each of them.
    """
    if isinstance(workload.optimizer, str):
        return make_named(workload.optimizer, model, implementation)
    given: Any = model if takes_model(workload.optimizer) else model.parameters()
    made = make_optimizer(workload.optimizer, given, implementation)
    if workload.step is None and not isinstance(made, torch.optim.Optimizer):
        raise WorkloadError(
            f"the workload's optimizer function returned {len(made)} optimizers: give the workload a "
            "step(model, optimizers, batch) that uses each of them, or return one"
        )
    return made


def takes_model(optimizer: OptimizerFactory) -> bool:
    """Whether a workload's optimizer function takes the model; else it takes the parameters."""
    try:
        return next(iter(inspect.signature(optimizer).parameters)) == "model"
    except (StopIteration, TypeError, ValueError):  # no parameter, or a callable written in C
        return False


def make_named(name: str, model: nn.Module, implementation: str = "default") -> Optimizers:
    """Makes the optimizer that a name stands for, or both if it stands for two.

    Args:
        name: one of `autofit_workers.spec.knobs.optimizer.OPTIMIZERS`.
        model: the model, already on the device that it is trained on.
        implementation: one of `autofit_workers.spec.knobs.optimizer_impl.OPTIMIZER_IMPLS`.

    Raises:
        WorkloadError: the optimizer has no such implementation, or the model has no weights for it.
        MissingLibraryError: its library is not installed.
    """
    made = tuple(make(groups) for make, groups in parts_of_named(name, model, implementation))
    return made[0] if len(made) == 1 else made


def parts_of_named(
    name: str, model: nn.Module, implementation: str = "default"
) -> list[tuple[MakeOptimizer, list[dict[str, Any]]]]:
    """Functions that make the one or two optimizers of a name, each with its parameter groups.

    Arguments and errors are those of `make_named`.
    """
    named = NAMED[name]
    if implementation not in named.implementations:
        raise _no_such_implementation(name, implementation)
    options = {**named.options, **_IMPLEMENTATIONS[implementation]}
    make: MakeOptimizer = functools.partial(_class_of(named.path, name), **options)
    if not named.tells_hidden_weights:
        return [(make, [{"params": [*model.parameters()]}])]
    hidden = hidden_weights(model)
    if not hidden:
        raise WorkloadError(
            f"{name} is for the matrices of hidden layers, and the model has none: use another optimizer"
        )
    known = set(map(id, hidden))
    rest = [parameter for parameter in model.parameters() if id(parameter) not in known]
    groups: list[dict[str, Any]] = [{"params": hidden, **named.hidden}]
    groups += [{"params": rest}] if rest else []
    if not named.rest:
        return [(make, groups)]
    makers: tuple[MakeOptimizer, ...] = (make, _class_of(named.rest, name))
    return [(maker, [group]) for maker, group in zip(makers, groups, strict=False)]


def _no_such_implementation(name: str, implementation: str) -> WorkloadError:
    named = NAMED[name]
    if named.implementations == ("default",):
        return WorkloadError(f"{name} has only its own implementation: leave out optimizer_impl")
    having = [other for other, each in NAMED.items() if implementation in each.implementations]
    return WorkloadError(
        f"PyTorch has no {implementation} CUDA kernel for {name}: use another optimizer_impl, "
        f"or one of {', '.join(having)}"
    )


def make_optimizer(
    optimizer: OptimizerFactory, params: Iterable[nn.Parameter], implementation: str = "default"
) -> Optimizers:
    """Makes optimizers with a workload's own function, and checks them.

    Args:
        params: the model's parameters, already on the device that they are trained on.
        implementation: `default`; the function decides it.

    Raises:
        WorkloadError: the function returned something other than optimizers, or `implementation` is not
            `default`.
    """
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
