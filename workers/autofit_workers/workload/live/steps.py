"""Losses and optimizers like those of trainers, for the process that runs their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autofit_workers.workload.workload import InvalidLossError


def loss_of_transformers(model: nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    """Loss that a model of transformers computes itself, from labels in its batch."""
    loss = getattr(model(**batch), "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise InvalidLossError(
            f"{type(model).__name__} returned no loss: let the batches have labels, or give the loss"
        )
    return loss


@dataclass(frozen=True)
class Checkpointed:
    """Function that switches on activation checkpointing in a model of transformers."""

    arguments: Mapping[str, Any] | None

    def __call__(self, model: nn.Module) -> None:
        enable: Callable[..., object] = model.gradient_checkpointing_enable  # type: ignore[assignment]
        enable(gradient_checkpointing_kwargs=self.arguments)


@dataclass(frozen=True)
class LikeOptimizer:
    """Function from a model to an optimizer like one of a trainer.

    Attributes:
        make: class of the optimizer.
        groups: names of the parameters of each group, with the group's own arguments.
        arguments: arguments that all groups share.
    """

    make: Callable[..., torch.optim.Optimizer]
    groups: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...]
    arguments: Mapping[str, Any]

    def __call__(self, model: Any) -> torch.optim.Optimizer:
        parameters = dict(model.named_parameters())
        groups = [
            {**own, "params": [parameters[name] for name in names]} for names, own in self.groups if names
        ]
        return self.make(groups, **self.arguments)

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, model: nn.Module) -> LikeOptimizer:
        """Function that makes an optimizer like a live one of a model's parameters, with none of its states.

        Raises:
            KeyError: the optimizer has other parameters than the model.
        """
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups = tuple(
            (
                tuple(names[parameter] for parameter in group["params"]),
                {key: value for key, value in group.items() if key in optimizer.defaults},
            )
            for group in optimizer.param_groups
        )
        return cls(type(optimizer), groups, {})


@dataclass(frozen=True)
class LightningLoss:
    """Function that computes the loss of a LightningModule's `training_step`."""

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        step: Callable[..., Any] = model.training_step  # type: ignore[assignment]
        output = step(batch, 0)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, torch.Tensor):
            raise InvalidLossError("training_step returned no loss, which a step needs")
        return loss


def from_rank_0(make: Callable[[], Any]) -> Any:
    """Value that rank 0 makes, on every rank; without a process group this process makes it.

    Raises:
        Exception: on every rank, whatever the function raised on rank 0.
    """
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return make()
    made: list[Any] = [None]
    if distributed.get_rank() == 0:
        try:
            made = [(make(), None)]
        except Exception as raised:  # noqa: BLE001 - the other ranks wait for an answer
            made = [(None, raised)]
    distributed.broadcast_object_list(made, src=0)
    value, error = made[0]
    if error is not None:
        raise error
    return value
