"""What PyTorch before 2.2 kept for backward that today's does not: the input of each mean.

So an RMSNorm kept the squares of its input too, in float32 where it squares in float32.

Source: `MeanBackward0` and `MeanBackward1` of 2.1.2 have a saved `self`; those of 2.2.0 have not
(pytorch/pytorch#109935, "Avoid saving `self` for mean.backward").
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

_OF_TORCH, _OF_TENSOR = torch.mean, Tensor.mean


@contextmanager
def kept_inputs_of_means() -> Iterator[None]:
    """Within, `torch.mean` and `Tensor.mean` keep their input until backward has run."""
    with patch.object(torch, "mean", _mean), patch.object(Tensor, "mean", _mean):
        yield


def keep_inputs_of_means(model: nn.Module, *, of: str) -> None:
    """Makes modules of that class's name run so, also where backward runs them again."""
    for module in model.modules():
        if type(module).__name__ == of:
            module.forward = functools.partial(_as_then, module.forward)


def _as_then(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with kept_inputs_of_means():
        return forward(*args, **kwargs)


def _mean(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002 - PyTorch's name
    # Where a mode handles the call, PyTorch hands it what stands under the function's name.
    with patch.object(torch, "mean", _OF_TORCH), patch.object(Tensor, "mean", _OF_TENSOR):
        mean = _OF_TENSOR(input, *args, **kwargs)
    if mean.grad_fn is not None:
        mean = _Keeping.apply(mean, input)
    return mean


class _Keeping(torch.autograd.Function):
    """Passes a mean on; what it is the mean of is saved, and not wanted."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, input: Tensor) -> Tensor:  # noqa: A002
        ctx.save_for_backward(input)
        return mean.view_as(mean)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
