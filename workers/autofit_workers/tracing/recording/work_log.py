"""Log of each operator's work: shapes, dtypes and layouts of the tensors that it reads and writes.

From this work the time of a step on a card is predicted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.spec.work import Convolution, Layout, Operand, Work, WorkCall
from autofit_workers.tracing.fake import streams
from autofit_workers.tracing.recording.collectives import (
    arguments_of,
    given_and_got,
    is_collective,
    is_wait,
    process_group_of,
    ranks_of,
    runs_beside,
    work_in,
)
from autofit_workers.tracing.recording.convolution_calls import convolutions
from autofit_workers.tracing.recording.names import name_of, name_of_type
from autofit_workers.tracing.recording.streams.call_order import CallOrder

aten = torch.ops.aten
# Operators that launch no kernel: they return uninitialized memory or a view.
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
_WRITTEN = "out"  # argument that holds the result
_FIRST_OF_GROUPS = 1024  # number of the first stream that a process group owns
_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})
_CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}  # order of dimensions in memory, by their number


class _UnderWay(NamedTuple):
    """Collective in flight on the own stream of its process group.

    Attributes:
        stream: number of that stream.
        number: index of the collective in `WorkLog.calls`.
        handle: the `torch.distributed.Work` that the caller waits for, or another object in its place.
        storages: addresses of the storages of its results.
    """

    stream: int
    number: int
    handle: object
    storages: frozenset[int]


class WorkLog:
    """Log of the work of operators on one type of device.

    Args:
        device_type: type of the device, `cuda` or `cpu`; tensors on others are ignored.

    Attributes:
        calls: the calls so far, except those made while the log was paused.
        order: works out which calls of other streams each call waits for.
        is_paused: whether calls are not logged, for example those of steps before the last.
    """

    def __init__(self, device_type: str) -> None:
        self.calls: list[WorkCall] = []
        self.order = CallOrder()
        self.is_paused = False
        self._device_type = device_type
        self._num_views = 0
        self._streams_of_groups: dict[str, int] = {}
        self._under_way: list[_UnderWay] = []  # collectives that no stream has waited for yet

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which operator calls are not logged."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before

    def add(  # noqa: PLR0917 - an operator's call and where it came from
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        module: str,
        position: int,
    ) -> None:
        """Logs an operator call with the tensors that it reads and writes, from which its time is predicted.

        Args:
            module: path of the module that called the operator.
            position: number of allocations and frees recorded before the call.
        """
        if self.is_paused:
            return
        if func in _WITHOUT_WORK or getattr(func, "is_view", False):
            self._num_views += 1
            return
        if is_collective(func):
            self._add_collective(func, args, kwargs, result, module, position)
            return
        given = (value for name, value in kwargs.items() if name != _WRITTEN)
        inputs, outputs = self._operands((*args, *given)), self._operands((result,))
        if not inputs and not outputs:
            return
        work = Work(
            name_of(func),
            inputs,
            outputs or (self._operands(args[:1]) if _writes_first(func) else ()),
            _convolutions(func, args, result),
            _flags(func, args, kwargs) + (_TRANSFER if _is_transfer(func, inputs, outputs) else ()),
        )
        self._append(work, module, position, streams.current_number())

    def _append(self, work: Work, module: str, position: int, stream: int) -> None:
        after = self.order.add(stream, len(self.calls))
        self.calls.append(WorkCall(work, module, position, self._num_views, stream, after))
        self._num_views = 0

    def _add_collective(  # noqa: PLR0917 - as of `add`
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        module: str,
        position: int,
    ) -> None:
        """Logs a collective with its tensors and ranks, or a wait for the result of an earlier one."""
        if is_wait(func):
            self._wait_for_result(args[0])
            return
        given = arguments_of(func, args, kwargs)
        process_group = process_group_of(given)
        if process_group is None:
            return
        gives, gets = given_and_got(given, result)
        work = Work(
            name_of(func),
            self._operands(gives),
            self._operands(gets),
            group=ranks_of(given, process_group),
        )
        self.exchange(
            work,
            module,
            position,
            name_of_group=process_group.group_name if runs_beside(func, given) else None,
            handle=work_in(result),
            results=gets,
        )

    def exchange(
        self,
        work: Work,
        module: str,
        position: int,
        *,
        name_of_group: str | None,
        handle: object = None,
        results: Iterable[Any] = (),
    ) -> None:
        """Logs a collective, on the current stream or on its process group's own.

        Args:
            work: tensors that the collective reads and writes, and its ranks.
            module: path of the module that runs.
            position: number of allocations and frees recorded before the collective.
            name_of_group: process group on whose own stream the collective runs; None for the current stream.
            handle: object that identifies the collective in `wait_for`.
            results: output tensors, of which the program may pass one to `wait_tensor`.
        """
        if self.is_paused or not (work.inputs or work.outputs):
            return
        current = streams.current_number()
        if name_of_group is None:
            self._append(work, module, position, current)
            return
        own = _FIRST_OF_GROUPS + self._streams_of_groups.setdefault(
            name_of_group, len(self._streams_of_groups)
        )
        self.order.wait(own, self.order.record(current))
        self._append(work, module, position, own)
        storages = frozenset(each.untyped_storage()._cdata for each in _tensors(results))
        self._under_way.append(_UnderWay(own, len(self.calls) - 1, handle, storages))

    def wait_for(self, stream: int, handle: object) -> None:
        """Makes stream number `stream` wait for the collective that was logged with `handle`."""
        self._wait_for(stream, [each for each in self._under_way if each.handle is handle])

    def wait_for_collectives(self) -> None:
        """Makes the current stream wait for all collectives in flight, as DDP's reducer does in C++."""
        self._wait_for(streams.current_number(), self._under_way)

    def _wait_for_result(self, tensor: Any) -> None:
        storages = {each.untyped_storage()._cdata for each in _tensors((tensor,))}
        self._wait_for(
            streams.current_number(), [each for each in self._under_way if each.storages & storages]
        )

    def _wait_for(self, stream: int, found: Iterable[_UnderWay]) -> None:
        for each in tuple(found):
            self.order.wait(stream, {each.stream: each.number})
            self._under_way.remove(each)

    def _operands(self, values: Iterable[Any]) -> tuple[Operand, ...]:
        found: list[Operand] = []
        for value in values:
            if isinstance(value, FakeTensor):
                if value.fake_device.type == self._device_type and value.layout is torch.strided:
                    found.append(operand(value))
            elif isinstance(value, (list, tuple)):
                found += self._operands(value)
        return tuple(found)


def _tensors(values: Iterable[Any]) -> list[FakeTensor]:
    found: list[FakeTensor] = []
    for value in values:
        if isinstance(value, FakeTensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(value)
    return found


def _convolutions(func: OpOverload, args: tuple[Any, ...], result: Any) -> tuple[Convolution, ...]:
    if func not in _CONVOLUTIONS:
        return ()
    return tuple(each for each in convolutions(func, args, result) if each is not None)


def operand(tensor: torch.Tensor) -> Operand:
    """Description of a tensor as an operand: shape, dtype and layout."""
    return _operand(tensor.shape, tensor.stride(), tensor.dtype)


@functools.lru_cache(maxsize=2**16)  # most operands of a step are equal to earlier ones
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
    """Whether a tensor's elements are dense in memory with its dimensions in `order`, outermost first."""
    expected = 1
    for place in reversed(order):
        if shape[place] != 1:
            if strides[place] != expected:
                return False
            expected *= shape[place]
    return True


def _writes_first(func: OpOverload) -> bool:
    """Whether an operator writes its first argument in place."""
    arguments = _arguments(func)
    return bool(arguments) and arguments[0].alias_info is not None and arguments[0].alias_info.is_write


def _is_transfer(func: OpOverload, inputs: tuple[Operand, ...], outputs: tuple[Operand, ...]) -> bool:
    """Whether an operator copies between the logged device and another device."""
    if func is aten.copy_.default:
        return len(inputs) == 1
    return func is aten._to_copy.default and not (inputs and outputs)


def _flags(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """Flags of an operator's call that tell which kernel runs, such as `causal`."""
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
def _always(func: OpOverload) -> tuple[str, ...]:
    return ("pointwise",) if torch.Tag.pointwise in getattr(func, "tags", ()) else ()


_FLAGS = {"is_causal": "causal", "training": "training", "train": "training"}  # flag by argument name


def _arguments(func: OpOverload) -> Sequence[Any]:
    """Arguments in an operator's schema; empty for higher-order operators such as `flex_attention`."""
    schema = getattr(func, "_schema", None)
    return () if schema is None else schema.arguments


@functools.cache
def _flagged(func: OpOverload) -> tuple[tuple[int, str, str], ...]:
    return tuple(
        (place, argument.name, _FLAGS[argument.name])
        for place, argument in enumerate(_arguments(func))
        if argument.name in _FLAGS
    )
