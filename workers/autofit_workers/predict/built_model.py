"""What a predicted model is, in words for its answer: its class, its parameters, and what it was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autofit_workers.protocol import WorkloadRef

_OF_TRANSFORMERS = "hf:"
_NAMES = ((10**9, "billion"), (10**6, "million"))


class BuiltModel:
    """Builds a model, and remembers what it was before knobs changed it."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._build = build
        self._class, self._num_parameters, self._named = "", 0, ""

    def __call__(self) -> nn.Module:
        model = self._build()
        self._class = type(model).__name__
        named = getattr(getattr(model, "config", None), "architectures", None) or [self._class]
        self._named = named[0]
        self._num_parameters = sum(parameter.numel() for parameter in model.parameters())
        return model

    def notes(self, ref: WorkloadRef, make_batch: Callable[..., Any]) -> tuple[str, ...]:
        """Says it of a model whose class its configuration decides, and whose batches are made here."""
        if ref.kind != "library" or not ref.target.startswith(_OF_TRANSFORMERS):
            return ()
        sample = ", ".join(
            f"{name} {'×'.join(map(str, tensor.shape[1:]))}".rstrip()
            for name, tensor in make_batch(1, torch.device("meta")).items()
        )
        size = _in_words(self._num_parameters)
        if self._named != self._class:
            size += f" (its configuration names {self._named}, which has no loss)"
        return (f"the model is {self._class}, {size}; a sample is {sample}",)


def _in_words(num_parameters: int) -> str:
    for unit, name in _NAMES:
        if num_parameters >= unit:
            return f"{num_parameters / unit:.3g} {name} parameters"
    return f"{num_parameters:,} parameters"
