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

    def __call__(self, model: nn.Module) -> nn.Module:
        enable: Callable[..., object] = model.gradient_checkpointing_enable  # type: ignore[assignment]
        enable(gradient_checkpointing_kwargs=self.arguments)
        return model


class TrainingStep(nn.Module):
    """Module whose forward pass is the `training_step` of a LightningModule, so that DDP may wrap it.

    Args:
        module: the LightningModule.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> torch.Tensor:
        step: Callable[..., Any] = self.module.training_step  # type: ignore[assignment]
        output = step(batch, 0)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, torch.Tensor):
            raise InvalidLossError("training_step returned no loss, which a step needs")
        return loss


def loss_of_training_step(model: nn.Module, batch: Any) -> torch.Tensor:
    """Loss of a `TrainingStep`, or of what is wrapped around one."""
    loss: torch.Tensor = model(batch)
    return loss


def loss_of_composer(model: nn.Module, batch: Any) -> torch.Tensor:
    """Loss that a ComposerModel computes from its outputs, as Composer's Trainer adds it up."""
    own_model: Any = model if hasattr(model, "loss") else model.module  # what DDP is wrapped around
    found = own_model.loss(model(batch), batch)
    if isinstance(found, Mapping):
        losses = [found["total"]] if "total" in found else [*found.values()]
    else:
        losses = [found] if isinstance(found, torch.Tensor) else [*(found or ())]
    if not losses:
        raise InvalidLossError(f"{type(own_model).__name__}.loss() returned no loss, which a step needs")
    return torch.stack([loss.sum() for loss in losses]).sum()


@dataclass(frozen=True)
class LikeOptimizer:
    """Function from a model to an optimizer like one of a trainer.

    Attributes:
        make: class of the optimizer.
        groups: names of the parameters of each group, with the group's own arguments; no names stand for all
            parameters that are trained.
        arguments: arguments that all groups share.
    """

    make: Callable[..., torch.optim.Optimizer]
    groups: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...]
    arguments: Mapping[str, Any]

    def __call__(self, model: Any) -> torch.optim.Optimizer:
        own_model = model.module if isinstance(model, TrainingStep) else model
        parameters = {name: each for name, each in own_model.named_parameters() if each.requires_grad}
        groups = [
            {**own, "params": [parameters[name] for name in names or parameters if name in parameters]}
            for names, own in self.groups
        ]
        return self.make(groups, **self.arguments)

    @classmethod
    def alike(cls, optimizer: torch.optim.Optimizer, model: nn.Module) -> LikeOptimizer:
        """Function that makes an optimizer like a live one, with none of its states.

        If a strategy has replaced the model's parameters, all that are trained form one group.
        """
        names = {parameter: name for name, parameter in model.named_parameters()}
        groups = []
        for group in optimizer.param_groups:
            own = {key: value for key, value in group.items() if key in optimizer.defaults}
            known = tuple(names[parameter] for parameter in group["params"] if parameter in names)
            if len(known) < len(group["params"]):
                return cls(type(optimizer), (((), own),), own)
            groups.append((known, own))
        return cls(type(optimizer), tuple(groups), {})


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
