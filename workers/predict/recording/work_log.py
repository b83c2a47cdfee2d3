"""What each operator has to do on the device: the tensors that it reads and writes, and how they lie."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from workers.predict.recording.convolution_calls import convolutions
from workers.predict.recording.names import name_of, name_of_type
from workers.work import Convolution, Layout, Operand, Work, WorkCall

aten = torch.ops.aten
# They return memory that nothing is written to.
_WITHOUT_WORK = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
        aten.resize_.default,
        aten.set_.source_Storage,
        aten.set_.source_Storage_storage_offset,
        aten.set_.source_Tensor,
        aten.detach.default,
        aten._unsafe_view.default,
        aten._reshape_alias.default,
        aten.lift_fresh.default,
    }
)
_TRANSFER = ("transfer",)
_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})
_CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}  # the dimensions, outermost first


class WorkLog:
    """Collects what operators have to do.

    Args:
        device_type: of the tensors that count.

    Attributes:
        calls: so far, of all steps in which it was not paused.
        is_paused: whether calls pass by unseen, as those of steps before the last one may.
    """

    def __init__(self, device_type: str) -> None:
        self.calls: list[WorkCall] = []
        self.is_paused = False
        self._device_type = device_type
        self._num_views = 0

    def add(  # noqa: PLR0917 - an operator's call and where it came from
        self,
        func: torch._ops.OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        module: str,
        position: int,
    ) -> None:
        """Notes one call."""
        if self.is_paused:
            return
        if func in _WITHOUT_WORK or getattr(func, "is_view", False):
            self._num_views += 1
            return
        inputs, outputs = self._operands((*args, *kwargs.values())), self._operands((result,))
        if not inputs and not outputs:
            return
        work = Work(
            name_of(func),
            inputs,
            outputs or (self._operands(args[:1]) if _writes_first(func) else ()),
            _convolutions(func, args, result),
            _flags(func, args, kwargs) + (_TRANSFER if _is_transfer(func, inputs, outputs) else ()),
        )
        self.calls.append(WorkCall(work, module, position, self._num_views))
        self._num_views = 0

    def _operands(self, values: Iterable[Any]) -> tuple[Operand, ...]:
        found: list[Operand] = []
        for value in values:
            if isinstance(value, FakeTensor):
                if value.fake_device.type == self._device_type and value.layout is torch.strided:
                    found.append(operand(value))
            elif isinstance(value, (list, tuple)):
                found += self._operands(value)
        return tuple(found)


def _convolutions(func: torch._ops.OpOverload, args: tuple[Any, ...], result: Any) -> tuple[Convolution, ...]:
    if func not in _CONVOLUTIONS:
        return ()
    return tuple(each for each in convolutions(func, args, result) if each is not None)


def operand(tensor: torch.Tensor) -> Operand:
    """A tensor as work is described by it."""
    return _operand(tensor.shape, tensor.stride(), tensor.dtype)


@functools.lru_cache(maxsize=2**16)  # most operators of a step have operands that others had
def _operand(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Operand:
    repeated = tuple(
        place
        for place, (size, stride) in enumerate(zip(shape, strides, strict=True))
        if not stride and size > 1
    )
    return Operand(tuple(shape), name_of_type(dtype), _layout(shape, strides), repeated)


def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    dimensions = range(len(shape))
    if _is_dense(dimensions, shape, strides):
        return Layout.CONTIGUOUS
    order = _CHANNELS_LAST.get(len(shape))
    if order is not None and _is_dense(order, shape, strides):
        return Layout.CHANNELS_LAST
    if len(shape) > 1 and _is_dense((*dimensions[:-2], dimensions[-1], dimensions[-2]), shape, strides):
        return Layout.TRANSPOSED
    return Layout.STRIDED


def _is_dense(order: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements lie one after the other, the last of these dimensions innermost."""
    expected = 1
    for place in reversed(order):
        if shape[place] != 1:
            if strides[place] != expected:
                return False
            expected *= shape[place]
    return True


def _writes_first(func: torch._ops.OpOverload) -> bool:
    """Whether an operator that returns nothing writes its first argument, as those on lists do in place."""
    arguments = _arguments(func)
    return bool(arguments) and arguments[0].alias_info is not None and arguments[0].alias_info.is_write


def _is_transfer(
    func: torch._ops.OpOverload, inputs: tuple[Operand, ...], outputs: tuple[Operand, ...]
) -> bool:
    """Whether a copy has one end alone on the device; of `copy_` its target is an input too."""
    if func is aten.copy_.default:
        return len(inputs) == 1
    return func is aten._to_copy.default and not (inputs and outputs)


def _flags(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """What arguments say of which kernel runs, such as whether an attention is causal."""
    flagged = _flagged(func)
    if not flagged:
        return _always(func)
    said = (
        flag
        for place, name, flag in flagged
        if (args[place] if place < len(args) else kwargs.get(name, False))
    )
    return (*_always(func), *said)


@functools.cache
def _always(func: torch._ops.OpOverload) -> tuple[str, ...]:
    return ("pointwise",) if torch.Tag.pointwise in getattr(func, "tags", ()) else ()


_FLAGS = {"is_causal": "causal", "training": "training", "train": "training"}  # by the argument's name


def _arguments(func: torch._ops.OpOverload) -> Sequence[Any]:
    """By the operator's schema; one that takes functions, such as `flex_attention`, has none."""
    schema = getattr(func, "_schema", None)
    return () if schema is None else schema.arguments


@functools.cache
def _flagged(func: torch._ops.OpOverload) -> tuple[tuple[int, str, str], ...]:
    return tuple(
        (place, argument.name, _FLAGS[argument.name])
        for place, argument in enumerate(_arguments(func))
        if argument.name in _FLAGS
    )
