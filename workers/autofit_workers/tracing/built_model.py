"""Class, number of parameters and input shapes of a predicted model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.trace import TracedModel

_OF_TRANSFORMERS = "hf:"


class BuiltModel:
    """Wrapper of a function that builds a model; remembers the model's class and number of parameters.

    Both are taken right after building, before knobs such as an adapter change the model.
    """

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

    def traced(self, ref: WorkloadRef, make_batch: Callable[..., Any]) -> TracedModel:
        """Description of the built model, to be stored with its trace.

        Input shapes are only included for transformers models, whose batches autofit makes.

        Args:
            ref: reference by which the workload was loaded.
            make_batch: makes a batch, whose shapes are described.
        """
        is_ours = ref.kind == "library" and ref.target.startswith(_OF_TRANSFORMERS)
        batch = make_batch(1, torch.device("meta")) if is_ours else {}
        return TracedModel(
            model_class=self._class,
            num_parameters=self._num_parameters,
            named=self._named if is_ours and self._named != self._class else "",
            inputs={name: shape for key, value in batch.items() for name, shape in _shapes(key, value)},
        )


def _shapes(name: str, value: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields names and shapes of the tensors in a batch, with the batch dimension left out.

    Args:
        value: a tensor whose first dimension is a batch of 1, or a list of one sample.
    """
    match value:
        case torch.Tensor():
            is_of_samples = value.shape[:1] == (1,)
            yield name, tuple(value.shape[1:] if is_of_samples else value.shape)
        case [first]:
            parts = first.items() if isinstance(first, dict) else [("", first)]
            for part, tensor in parts:
                yield f"{name}.{part}".rstrip("."), tuple(tensor.shape)
