"""The tensors that a model and its optimizer hold, by what they are."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch

from workers.workload.optimizers import each_of
from workers.workload.workload import Optimizers


def gradients(parameters: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The gradients that there are."""
    return (p.grad for p in parameters if p.grad is not None)


def states(optimizers: Optimizers) -> Iterator[torch.Tensor]:
    """What optimizers remember from step to step."""
    for state in itertools.chain.from_iterable(each.state.values() for each in each_of(optimizers)):
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def owned(model: torch.nn.Module, optimizers: Optimizers | None) -> Iterator[tuple[str, str, torch.Tensor]]:
    """What model and optimizers hold: the path of the module, the name, the tensor."""
    for name, buffer in model.named_buffers():
        yield name.rpartition(".")[0], name, buffer
    for name, parameter in model.named_parameters():
        module = name.rpartition(".")[0]
        yield module, name, parameter
        if parameter.grad is not None:
            yield module, f"{name}.grad", parameter.grad
        for optimizer in () if optimizers is None else each_of(optimizers):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    yield module, f"{name}.{key}", value
