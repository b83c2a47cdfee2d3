"""Who is told what a script does, and of which kind its steps are."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import torch


class StepKind(StrEnum):
    """What a script's steps end with."""

    OPTIMIZER = "optimizer step"
    BACKWARD = "backward pass"
    FORWARD = "forward pass"

    def counted(self, num: int) -> str:
        """`2 backward passes`."""
        plural = "es" if self.endswith("s") else "s"
        return f"{num} {self}{plural if num != 1 else ''}"


class Follower(Protocol):
    """Who is told what a script does."""

    def forward(self, module: torch.nn.Module) -> None:
        """A module is called that no other one calls."""

    def backward(self) -> None:
        """The engine begins."""

    def after_backward(self) -> None:
        """The engine is done."""

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """A step begins; a closure may still run forward and backward in it."""

    def stepped(self, optimizer: torch.optim.Optimizer | None) -> None:
        """A step has ended; None of a script that updates its parameters itself."""

    def counted(self, kind: StepKind) -> None:
        """One more of a kind of steps has ended, before any loop is."""

    def wants_more(self, kind: StepKind) -> bool:
        """Whether more steps of a kind would tell more, of which as many as were wanted are made."""

    def saving(self) -> None:
        """Something is saved that may be a checkpoint."""

    def ended(self) -> None:
        """Enough steps were made: what the script does from here on is no part of it."""
