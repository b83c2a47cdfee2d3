"""Intercepts calls of PyTorch's convolutions and runs rewrites in their place.

Every convolution, of a module or of `torch.nn.functional`, calls `torch.conv1d`, `conv2d` or `conv3d`, and a
`TorchFunctionMode` intercepts these calls. The model itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from autofit_workers.conv.geometry import Geometry
from autofit_workers.conv.lowering import lowered
from autofit_workers.conv.lowerings import lowering_of
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms import Rewrite
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.work import Convolution, ConvPass

_DIMENSIONS: dict[Any, int] = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
_Numbers = int | tuple[int, ...] | list[int]


class Rewriting(TorchFunctionMode):
    """PyTorch function mode that computes convolutions by other operators (rewrites), such as im2col.

    Calls that a rewrite cannot compute run unchanged. A layer's name, its path in the model, is known only
    while a model passed to `follow` runs; else it is empty.

    Args:
        choose: returns the rewrite for a layer's name, or None to leave the layer unchanged.
        only_followed: whether calls outside the models passed to `follow` stay unchanged.

    Attributes:
        rewritten: number of rewritten calls by layer.
        left: by layer, the reason why a call ran unchanged although a rewrite was chosen for it.
    """

    def __init__(self, choose: Callable[[str], Rewrite | None], *, only_followed: bool = False) -> None:
        super().__init__()
        self._choose = choose
        self._only_followed = only_followed
        self._running: list[str] = []
        self.rewritten: dict[str, int] = {}
        self.left: dict[str, str] = {}

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs a call, as a rewrite if it is a convolution that a chosen rewrite can compute."""
        num_dimensions = _DIMENSIONS.get(func)
        if num_dimensions is None or (self._only_followed and not self._running):
            return func(*args, **(kwargs or {}))
        layer = self._running[-1] if self._running else ""
        rewrite = self._choose(layer)
        if rewrite is None:
            return func(*args, **(kwargs or {}))
        call = _Call(num_dimensions, *args, **(kwargs or {}))
        reason = call.why_not(rewrite)
        if reason is not None:
            self.left.setdefault(layer, reason)
            return func(*args, **(kwargs or {}))
        self.rewritten[layer] = self.rewritten.get(layer, 0) + 1
        return call.rewritten(rewrite)

    def follow(self, model: torch.nn.Module) -> list[Any]:
        """Registers hooks that track which named layer of a model runs; returns the hooks."""
        return [hook for name, module in model.named_modules() for hook in self._hooks(module, name)]

    def _hooks(self, module: torch.nn.Module, name: str) -> Iterator[Any]:
        def enter(_module: torch.nn.Module, _args: Any) -> None:
            self._running.append(name)

        def leave(_module: torch.nn.Module, _args: Any, _output: Any) -> None:
            self._running.pop()

        yield module.register_forward_pre_hook(enter)
        yield module.register_forward_hook(leave, always_call=True)


class _Call:
    """Arguments of one call of `torch.conv1d`, `conv2d` or `conv3d`."""

    def __init__(  # noqa: PLR0917 - the signature of PyTorch's functions
        self,
        num_dimensions: int,
        input: Tensor,  # noqa: A002
        weight: Tensor,
        bias: Tensor | None = None,
        stride: _Numbers = 1,
        padding: _Numbers | str = 0,
        dilation: _Numbers = 1,
        groups: int = 1,
    ) -> None:
        self._input, self._weight, self._bias = map(_autocast, (input, weight, bias))
        dilations = _each(dilation, num_dimensions)
        self._border: list[int] = []
        if isinstance(padding, str):
            paddings, self._border = _named_padding(padding, weight, dilations)
        else:
            paddings = _each(padding, num_dimensions)
        self._geometry = Geometry(
            stride=_each(stride, num_dimensions), padding=paddings, dilation=dilations, groups=groups
        )

    def why_not(self, rewrite: Rewrite) -> str | None:
        """Reason why `rewrite` cannot compute the call, or why PyTorch would refuse it; None if it can."""
        image, weight = self._input, self._weight
        if image.dim() - self._geometry.num_dimensions not in (1, 2) or not image.numel():
            return "its input is not a batch of images"
        if image.is_complex() or image.dtype != weight.dtype or image.device != weight.device:
            return "its input and weight are not real numbers of one type on one device"
        shape = image.shape if self._is_batch else (1, *image.shape)
        if shape[1] != weight.shape[1] * self._geometry.groups or len(weight) % self._geometry.groups:
            return "its channels do not match"
        outputs = self._geometry.output(tuple(shape[2:]), tuple(weight.shape[2:]))
        if not self._border and min(outputs) < 1:
            return "its filter is larger than the input"
        return rewrite.why_not(
            Convolution(
                conv_pass=ConvPass.FPROP,
                input_shape=tuple(shape),
                weight_shape=tuple(weight.shape),
                output_shape=(shape[0], len(weight), *outputs),
                stride=self._geometry.stride,
                padding=self._geometry.padding,
                dilation=self._geometry.dilation,
                groups=self._geometry.groups,
                dtype=str(image.dtype).removeprefix("torch."),
                element_bytes=image.element_size(),
            )
        )

    def rewritten(self, rewrite: Rewrite) -> Tensor:
        image = torch.nn.functional.pad(self._input, self._border) if self._border else self._input
        batch = image if self._is_batch else image[None]
        output = lowered(
            batch.contiguous(), self._weight.contiguous(), self._bias, self._geometry, lowering_of(rewrite)
        )
        return output if self._is_batch else output[0]

    @property
    def _is_batch(self) -> bool:
        num_dimensions: int = self._input.dim()
        return num_dimensions == self._geometry.num_dimensions + 2


def _autocast(tensor: Tensor | None) -> Any:
    """Tensor cast to autocast's data type if autocast is enabled, else unchanged."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


def _each(value: _Numbers, num_dimensions: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * num_dimensions
    values = tuple(value)
    return values * num_dimensions if len(values) == 1 else values


def _named_padding(name: str, weight: Tensor, dilation: tuple[int, ...]) -> tuple[tuple[int, ...], list[int]]:
    """Padding for PyTorch's names `same` and `valid`.

    Args:
        name: one of the names.
        weight: weight of the convolution, which gives the filter's size.
        dilation: dilation for each spatial dimension.

    Returns:
        Zeros on both sides of each dimension, and the argument of `torch.nn.functional.pad` for one more zero
        at the end of some dimensions; that argument is empty if both sides are equal.
    """
    if name == "valid":
        return (0,) * len(dilation), []
    totals = [d * (size - 1) for d, size in zip(dilation, weight.shape[2:], strict=True)]
    if all(total % 2 == 0 for total in totals):
        return tuple(total // 2 for total in totals), []
    border = [side for total in reversed(totals) for side in (total // 2, total - total // 2)]
    return (0,) * len(dilation), border


@contextmanager
def rewriting(rewrite: Rewrite) -> Iterator[Rewriting]:
    """Context manager that computes every convolution of this thread by one rewrite.

    Raises:
        InapplicableError: after the block, if no call in it could be rewritten.
    """
    with Rewriting(lambda _layer: rewrite) as mode:
        yield mode
    if not mode.rewritten:
        raise InapplicableError(rewrite.applies_to_none(mode.left.values()))


def rewriting_layers(rewrites: Mapping[str, Rewrite]) -> Rewriting:
    """Mode that rewrites convolutions by layer name in models passed to its method `follow`."""
    return Rewriting(rewrites.get)


def rewriting_by_plan(plan: Iterable[tuple[str, str]]) -> Rewriting:
    """Mode that rewrites layers by a convolution plan, pairs of a layer's name and its algorithm.

    Layers whose algorithm is no rewrite stay unchanged.
    """
    found = {layer: conv.find(name) for layer, name in plan}
    return rewriting_layers({layer: each for layer, each in found.items() if isinstance(each, Rewrite)})
