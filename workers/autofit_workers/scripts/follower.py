"""Interface of callbacks on a script's forward and backward passes, steps and saves."""

from __future__ import annotations

from typing import Protocol

import torch

from autofit_workers.spec.pythons import StrEnum


class StepKind(StrEnum):
    """Kind of event that counts as a script's step: an optimizer's step, a backward or a forward pass."""

    OPTIMIZER = "optimizer step"
    BACKWARD = "backward pass"
    FORWARD = "forward pass"

    def counted(self, num: int) -> str:
        """Text for a number of steps, such as `2 backward passes`."""
        plural = "es" if self.endswith("s") else "s"
        return f"{num} {self}{plural if num != 1 else ''}"


class Follower(Protocol):
    """Interface of an observer of a running script, with a callback for each event of the training."""

    def forward(self, module: torch.nn.Module) -> None:
        """Called when an outermost module is called, one that no other module calls."""

    def backward(self) -> None:
        """Called when a backward pass begins in the autograd engine."""

    def after_backward(self) -> None:
        """Called when a backward pass has ended in the autograd engine."""

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Called when an optimizer's step begins; its closure may still run forward and backward."""

    def stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Called when a step has ended; `optimizer` is None if the script updates parameters itself."""

    def counted(self, kind: StepKind) -> None:
        """Called when one more step of `kind` was counted; called before any loop is ended."""

    def wants_more(self, kind: StepKind) -> bool:
        """Whether the follower still wants more steps of `kind` after the requested number was made."""

    def saving(self) -> None:
        """Called when the script saves something, which may be a checkpoint."""

    def ended(self) -> None:
        """Called when enough steps were made; the script's later actions do not count."""
