"""Yields the gradients, optimizer state and named tensors that a model and its optimizers hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch

from autofit_workers.tracing.recording.names import without_wrappers
from autofit_workers.workload.optimizers import each_of
from autofit_workers.workload.workload import Optimizers, tensors_of


def gradients(parameters: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yields the gradients of those `parameters` that have one."""
    return (p.grad for p in parameters if p.grad is not None)


def states(optimizers: Optimizers) -> Iterator[torch.Tensor]:
    """Yields the tensors in the state of the optimizers."""
    for state in itertools.chain.from_iterable(each.state.values() for each in each_of(optimizers)):
        for value in state.values():
            yield from _held_by(value)


def _held_by(value: object) -> Iterator[torch.Tensor]:
    """Yields the tensors in a value of an optimizer's state, and the tensors in their attributes."""
    for tensor in tensors_of(value):
        yield tensor
        yield from (part for part in vars(tensor).values() if isinstance(part, torch.Tensor))


def owned(model: torch.nn.Module, optimizers: Optimizers | None) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields module path, name and tensor of buffers, parameters, gradients and optimizer states."""
    for path, buffer in model.named_buffers():
        name = without_wrappers(path)
        yield name.rpartition(".")[0], name, buffer
    for path, parameter in model.named_parameters():
        name = without_wrappers(path)
        module = name.rpartition(".")[0]
        yield module, name, parameter
        if parameter.grad is not None:
            yield module, f"{name}.grad", parameter.grad
        for optimizer in () if optimizers is None else each_of(optimizers):
            for key, value in optimizer.state.get(parameter, {}).items():
                yield from ((module, f"{name}.{key}", tensor) for tensor in _held_by(value))
