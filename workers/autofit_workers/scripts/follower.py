"""Interface of followers, which are told what a script does, and the kinds of its steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import torch


class StepKind(StrEnum):
    """Kind of a script's steps: what they end with."""

    OPTIMIZER = "optimizer step"
    BACKWARD = "backward pass"
    FORWARD = "forward pass"

    def counted(self, num: int) -> str:
        """Text for a number of steps, such as `2 backward passes`."""
        plural = "es" if self.endswith("s") else "s"
        return f"{num} {self}{plural if num != 1 else ''}"


class Follower(Protocol):
    """Follower of a script, which is told what the script does."""

    def forward(self, module: torch.nn.Module) -> None:
        """Is told that an outermost module is called, one that no other module calls."""

    def backward(self) -> None:
        """Is told that the autograd engine begins."""

    def after_backward(self) -> None:
        """Is told that the autograd engine is done."""

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Is told that an optimizer's step begins; its closure may still run forward and backward."""

    def stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Is told that a step has ended; `optimizer` is None where a script updates parameters itself."""

    def counted(self, kind: StepKind) -> None:
        """Is told that one more step of a kind has ended, before any loop is ended."""

    def wants_more(self, kind: StepKind) -> bool:
        """Whether further steps of a kind, after the wanted number was made, would tell more."""

    def saving(self) -> None:
        """Is told that something is saved, which may be a checkpoint."""

    def ended(self) -> None:
        """Is told that enough steps were made: what the script does from here on does not count."""
