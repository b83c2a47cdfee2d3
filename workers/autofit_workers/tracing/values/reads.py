"""Answers Python calls that read values of fake tensors, such as `item`, with known or made-up values.

Made-up values stand for unknown ones; branches on them and sizes made from them are recorded (`decisions`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.tracing.values.decisions import running
from autofit_workers.tracing.values.known import copied_to_host, is_made_up, known, made_up_like
from autofit_workers.tracing.values.made_up import MadeUpInt, made_up

_TRACING = str(Path(__file__).parents[1])


def _host_values(tensor: Tensor) -> Tensor:
    """Real CPU tensor with the known or made-up values of `tensor`."""
    if not isinstance(tensor, FakeTensor):
        return tensor
    copy = copied_to_host(tensor)
    return made_up_like(tensor) if copy is None else copy


def number(tensor: Tensor) -> Any:
    """Result of `Tensor.item`: a known number, or a `MadeUpFloat` or `MadeUpInt`."""
    values = _host_values(tensor)
    value = values.detach().as_subclass(Tensor).item()  # PyTorch's error if there are several elements
    return made_up(value) if is_made_up(values) else value


def truth(tensor: Tensor) -> bool:
    """Result of `bool(tensor)`; if its value is made up, it is recorded as a branch on an unknown value."""
    values = _host_values(tensor)
    if is_made_up(values) and _is_in_distributions():
        return True  # `torch.distributions` checks that its arguments are valid
    value = bool(values.detach().as_subclass(Tensor))
    return running().decide(value) if is_made_up(values) else value


def _is_in_distributions() -> bool:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_TRACING):
        frame = frame.f_back
    return "/torch/distributions/" in frame.f_code.co_filename


def whole_number(tensor: Tensor) -> int:
    """Result of `int(tensor)`: an ordinary integer, even if it is made up, as Python requires one."""
    value = number(tensor)
    return int(getattr(value, "plain", value))


def index(tensor: Tensor) -> int:
    """Integer of a tensor that is used as a size or index; a made-up one is recorded as an assumed size.

    Made-up integers stand for values that only a real run has.
    """
    value = number(tensor)
    if isinstance(value, MadeUpInt):
        return running().assume("a number made of values", value.plain, None)
    return int(value)


def plain_number(tensor: Tensor) -> float:
    """Result of `float(tensor)`: an ordinary float, even if it is made up, as Python requires one."""
    value = number(tensor)
    return float(value.plain) if hasattr(value, "plain") else float(value)


def values(tensor: Tensor) -> Any:
    """Result of `Tensor.tolist`: a nested list of known or made-up numbers."""
    found = _host_values(tensor)
    plain = found.detach().as_subclass(Tensor).tolist()
    return _each(plain) if is_made_up(found) else plain


def _each(value: Any) -> Any:
    return [_each(item) for item in value] if isinstance(value, list) else made_up(value)


def array(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Result of `Tensor.numpy`, with PyTorch's errors for GPU tensors and tensors that require gradients."""
    if isinstance(tensor, FakeTensor) and tensor.device.type == "cuda":
        raise TypeError(
            f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
            "to host memory first."
        )
    force = kwargs.get("force", False)
    found = _host_values(tensor)
    return found.requires_grad_(tensor.requires_grad and not force).numpy(*args, **kwargs)


def to_array(tensor: Tensor, dtype: Any = None) -> Any:
    """Result of `Tensor.__array__`, a NumPy array of `dtype`."""
    found = array(tensor)
    return found if dtype is None else found.astype(dtype, copy=False)


def text(tensor: Tensor, spec: str = "") -> str:
    """Result of `Tensor.__format__`: the text of a tensor in an f-string with format `spec`."""
    return format(number(tensor), spec) if tensor.dim() == 0 else repr(tensor)


def _compared(compare: Callable[..., bool]) -> Callable[..., bool]:
    def compared(tensor: Tensor, other: Any, *args: Any, **kwargs: Any) -> bool:
        first, second = known(tensor), known(other)
        if first is not None and second is not None:
            way = compare(first.values, second.values, *args, **kwargs)
            return running().decide(way) if first.is_made_up or second.is_made_up else way
        return tensor.shape == other.shape and running().decide(True)

    return compared


ANSWERS: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.item: number,
    Tensor.__float__: plain_number,
    Tensor.__bool__: truth,
    Tensor.is_nonzero: truth,
    torch.is_nonzero: truth,
    Tensor.__int__: whole_number,
    Tensor.__index__: index,
    Tensor.tolist: values,
    Tensor.numpy: array,
    Tensor.__array__: to_array,
    Tensor.__format__: text,
    torch.equal: _compared(torch.equal),
    Tensor.equal: _compared(torch.equal),
    torch.allclose: _compared(torch.allclose),
    Tensor.allclose: _compared(torch.allclose),
}
# Reads that are answered for real tensors of made-up values too.
OF_MADE_UP = (Tensor.item, Tensor.__bool__, Tensor.__int__, Tensor.__index__, Tensor.tolist)
