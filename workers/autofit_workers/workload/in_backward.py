"""Optimizers that update each parameter in backward, once its gradient is complete, and free the gradient.

Each parameter has an optimizer of its own, which a hook after the accumulation of its gradient calls
(`register_post_accumulate_grad_hook`; "How to save memory by fusing the optimizer step into the backward
pass", PyTorch's tutorials). No optimizer step follows backward.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.workload.optimizers import each_of, make_optimizer, parts_of_named, takes_model
from autofit_workers.workload.workload import Workload

_Optimizers = tuple[torch.optim.Optimizer, ...]


def make_in_backward(workload: Workload, model: nn.Module, implementation: str = "default") -> _Optimizers:
    """Makes an optimizer for each trained parameter, with a hook that steps it once its gradient is complete.

    Args:
        workload: workload whose optimizer, a name or a function, makes them.
        model: the model, already on the device that it is trained on.
        implementation: one of `autofit_workers.spec.knobs.optimizer_impl.OPTIMIZER_IMPLS`.

    Raises:
        InapplicableError: the workload's function makes optimizers for a model, not for parameters.
        WorkloadError, MissingLibraryError: `make_optimizers` raises them.
    """
    made: list[torch.optim.Optimizer] = []
    for parameter, optimizers in _of_each(workload, model, implementation):
        hook = functools.partial(_step, optimizers)
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        made += optimizers
    return tuple(made)


def _of_each(
    workload: Workload, model: nn.Module, implementation: str
) -> Iterator[tuple[nn.Parameter, _Optimizers]]:
    """Yields each trained parameter with its own optimizers, made by the workload's name or function."""
    if isinstance(workload.optimizer, str):
        for make, groups in parts_of_named(workload.optimizer, model, implementation):
            for group in groups:
                for parameter in _trained(group["params"]):
                    yield parameter, (make([{**group, "params": [parameter]}]),)
        return
    if takes_model(workload.optimizer):
        raise InapplicableError(
            "the workload's optimizer function takes the model, and --optimizer-in-backward makes an "
            "optimizer for each parameter: have it take the parameters, or leave the option out"
        )
    for parameter in _trained(model.parameters()):
        yield parameter, each_of(make_optimizer(workload.optimizer, [parameter], implementation))


def _trained(parameters: Iterable[nn.Parameter]) -> Iterator[nn.Parameter]:
    return (parameter for parameter in parameters if parameter.requires_grad)


def _step(optimizers: _Optimizers, _parameter: torch.Tensor) -> None:
    for each in optimizers:
        each.step()
        each.zero_grad()
