"""Runs an evaluation step and saves a checkpoint once, as a training does between its epochs.

Either can need more memory than a training step, so a size that fits the steps fails
hours later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from autofit_workers.scripts.saving.sink import CountingSink


def evaluate(model: torch.nn.Module, forward: Callable[[], None]) -> None:
    """Runs one forward pass in evaluation mode; afterwards every module is in the mode it was in before.

    Args:
        model: the model.
        forward: runs the forward pass.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        forward()
    finally:
        for module, training in modes:
            module.training = training


def save_checkpoint(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Saves the states of model and optimizers as `torch.save` does, without keeping the bytes.

    Returns:
        The checkpoint's size in bytes.
    """
    sink = CountingSink()
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"model": model.state_dict(), "optimizers": states}, sink)  # type: ignore[arg-type]
    return sink.num_bytes
