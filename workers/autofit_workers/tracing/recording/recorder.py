"""Records which operator allocated each storage, and when the storage was freed.

The recorder is called after every operator, below autograd. A storage that it sees for the first time is an
allocation; a weak reference to the storage reports when the storage is freed.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from autofit_workers.pytorch.autograd import EXECUTION_ENGINE, current_node, sequence_number
from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.pytorch.pytree import tree_leaves
from autofit_workers.spec.releases import WORKSPACE_OF_EACH_PRODUCT
from autofit_workers.spec.trace import Allocation, Call, Category, Mark, last_step
from autofit_workers.spec.work import Convolution, Work, WorkCall
from autofit_workers.tracing import followed_release
from autofit_workers.tracing.fake import streams
from autofit_workers.tracing.fake.library_memory import LIBRARY_MEMORY
from autofit_workers.tracing.fake.ranks import shelves
from autofit_workers.tracing.fake.shapes import extent
from autofit_workers.tracing.recording import counted, hidden
from autofit_workers.tracing.recording.call_log import CallLog
from autofit_workers.tracing.recording.call_sites import Stacks, called_by_the_engine, user_source
from autofit_workers.tracing.recording.convolution_calls import convolutions
from autofit_workers.tracing.recording.generated_code import place_of
from autofit_workers.tracing.recording.names import name_of, name_of_type, without_wrappers
from autofit_workers.tracing.recording.streams.order import StreamOrder
from autofit_workers.tracing.recording.work_log import WorkLog

aten = torch.ops.aten
_NOTHING_BESIDE = hidden.Recipe()


@dataclass(slots=True)
class Origin:
    """Module and source lines that an operator was called from.

    Attributes:
        module: path of the module that runs; empty if none does.
        source: line of the user's code, as `file:line:function`.
        stack: call stack of such lines, outermost first.
    """

    module: str = ""
    source: str = ""
    stack: tuple[str, ...] = ()


@dataclass(slots=True)
class _PendingSum:
    """Sum of two gradients, not recorded yet as autograd may compute it in place.

    See `Recorder._sum_of_gradients`.

    Attributes:
        target: number of the older gradient's allocation, in which the sum may be computed.
        output: storage of the sum.
        allocation: what to record if the sum is not computed in place.
        call: number of the addition in the call log; None without a log.
    """

    target: int
    output: torch.UntypedStorage
    allocation: Allocation
    call: int | None = None


class Recorder:
    """Recorder of allocations, frees and calls on a fake GPU; pass `observe` to `FakeGpuMode`.

    Args:
        log: collects the operators that ran; if given, each allocation also has its call stack.

    Attributes:
        allocations: all allocations so far; an allocation's number is its index in this list.
        marks: starts of the phases, such as forward and backward.
        category: category of new allocations, such as activation or gradient.
        work: log of the tensors that each operator reads and writes, from which its time is predicted.
        order: waits among CUDA streams, and of the host for them.
        card: index of the GPU whose memory is recorded; tensors on other GPUs are ignored.
    """

    _device_type = "cuda"
    card = 0

    def __init__(self, log: CallLog | None = None) -> None:
        self._log = log
        self.work = WorkLog(self._device_type)
        self._stacks = None if log is None else Stacks()
        self.allocations: list[Allocation] = []
        self._events: list[int] = []
        self.marks: list[Mark] = []
        self.category = Category.OTHER
        self._ids: dict[int, int] = {}  # StorageImpl address -> index in allocations
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._origins: dict[int, Origin] = {}  # autograd sequence number -> forward origin
        self._modules: list[str] = []
        self._node: int | None = None  # sequence number of the autograd node that backward runs
        self._node_start = 0  # number of the first allocation since that node began
        self._pending: _PendingSum | None = None
        self._in_backward = False
        self.order = StreamOrder(lambda: len(self._events))
        self._threads_with_handle: set[bool] = set()  # True: the thread of backward
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the recording has ended."""
        return self._closed

    @property
    def num_modules(self) -> int:
        """Number of modules whose forward passes run, one within the other."""
        return len(self._modules)

    @property
    def num_live(self) -> int:
        """Number of storages that are alive on the device."""
        return len(self._ids)

    @property
    def live_bytes(self) -> int:
        """Bytes of the storages that are alive on the device."""
        return sum(self.allocations[index].num_bytes for index in self._ids.values())

    @property
    def position(self) -> int:
        """Number of allocations and frees recorded so far."""
        self._settle_pending()
        return len(self._events)

    def mark(self, name: str, position: int | None = None) -> None:
        """Marks the start of a phase of the step, such as `backward`, in the trace.

        Args:
            name: name of the phase.
            position: number of allocations and frees before the phase, at least that of the last mark; None
                for now.
        """
        if self._closed:
            return
        self.marks.append(Mark(position=self.position if position is None else position, name=name))
        if name.endswith(" backward"):
            shelves.begin_backward()

    def work_of_last_step(self) -> tuple[WorkCall, ...]:
        """Work of each operator call in the last whole step; empty without a whole step."""
        start, stop = last_step(self.marks, len(self._events))
        return tuple(call for call in self.work.calls if start <= call.position < stop)

    def close(self) -> None:
        """Ends the recording: storages freed from here on count as freed after the last step."""
        self._settle_pending()
        self._closed = True

    def events(self) -> tuple[int, ...]:
        """Allocations and frees so far: `n` allocates allocation number `n`, and `~n` frees it.

        Successive frees are sorted by number, so that equal steps give equal events: autocast's cache is
        keyed by address and frees its copies in a different order each time. The free blocks that result
        do not depend on that order. A convolution's workspace is freed before the other allocations, as
        its operands are still alive when the convolution ends.
        """
        ordered: list[int] = []
        bounds = [0, *(mark.position for mark in self.marks), len(self._events)]
        for start, stop in itertools.pairwise(bounds):
            for _, run in itertools.groupby(self._events[start:stop], lambda event: event < 0):
                ordered += sorted(run, key=self._place)
        return tuple(ordered)

    def _place(self, event: int) -> tuple[bool, int]:
        """Sort key of an allocation or a free among successive events of its type.

        A convolution's workspace is freed right after its allocation, so it comes first among frees.
        """
        number = max(event, ~event)
        return event < 0 and self.allocations[number].convolution is None, number

    def allocation_of(self, tensor: torch.Tensor) -> int | None:
        """Number of the allocation that holds a tensor; None for a tensor on another device."""
        tensor = getattr(tensor, "_local_tensor", tensor)  # a `DTensor`'s shard on this rank
        return self._ids.get(tensor.untyped_storage()._cdata) if self._is_ours(tensor) else None

    def _lies_in(self, values: Any) -> tuple[int, ...]:
        """Indices of the allocations that hold the tensors in `values`, without repeats."""
        leaves = (leaf for leaf in tree_leaves(values) if isinstance(leaf, FakeTensor))
        numbers = map(self.allocation_of, leaves)
        return tuple(dict.fromkeys(number for number in numbers if number is not None))

    def name(self, owned: Iterable[tuple[str, str, torch.Tensor]]) -> None:
        """Gives allocations the module path and name of the tensors that they hold.

        If several modules share a tensor, its allocation keeps the first name.

        Args:
            owned: module path, name and tensor, as `owners.owned` yields them.
        """
        for module, name, tensor in owned:
            index = self.allocation_of(tensor)
            if index is not None and not self.allocations[index].name:
                allocation = self.allocations[index]
                self.allocations[index] = dataclasses.replace(allocation, module=module, name=name)

    def note_use(self, tensor: torch.Tensor, stream: int) -> None:
        """Records that a stream, given by its number, uses a tensor's memory (`Tensor.record_stream`)."""
        index = self.allocation_of(tensor)
        if index is None or self._closed:
            return
        allocation = self.allocations[index]
        if stream not in (allocation.stream, *allocation.stream_uses):
            self.allocations[index] = dataclasses.replace(
                allocation, stream_uses=(*allocation.stream_uses, stream)
            )

    def recategorize(self, tensors: Iterable[torch.Tensor], category: Category) -> None:
        """Changes the category of the allocations that hold `tensors`, for example to gradient."""
        for tensor in tensors:
            index = self.allocation_of(tensor)
            if index is not None:
                self.allocations[index] = _with_category(self.allocations[index], category)

    def observe(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Records the allocations and the work of an operator that has just run.

        The fake device's dispatch mode calls this after every operator.
        """
        if self._closed:
            return
        followed_release.observe(func)
        self._settle_pending()
        if self._log is None and self._takes_nothing(func, result):
            self._note_origin(sys._getframe(1))
            self.work.add(func, args, kwargs, result, self._module(), len(self._events))
            return
        origin = self._origin(sys._getframe(1))
        self.work.add(func, args, kwargs, result, origin.module, len(self._events))
        operator = name_of(func)
        if self._log is None:
            self._observe(func, args, kwargs, result, operator, origin)
            return
        position, inputs = len(self._events), self._lies_in((args, kwargs))
        self._observe(func, args, kwargs, result, operator, origin)
        if not inputs and len(self._events) == position:
            return  # the operator ran on another device
        outputs = self._lies_in(result)
        call = Call(
            position=position,
            operator=operator,
            module=origin.module,
            inputs=inputs,
            outputs=outputs,
            # A `HigherOrderOperator` has no tags.
            is_elementwise=torch.Tag.pointwise in getattr(func, "tags", ()),
        )
        if self._pending is not None:
            self._pending.call = len(self._log.calls)
        self._log.add(call, sys._getframe(1))

    def note_work(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Records the work of an operator whose allocations `observe` has already recorded."""
        if not self._closed:
            self.work.add(func, args, kwargs, result, self._module(), len(self._events))

    def exchanged(self, work: Work, *, name_of_group: str, handle: object) -> None:
        """Records the work of a collective that is simulated without an operator; see `WorkLog.exchange`."""
        if not self._closed:
            self.work.exchange(
                work, self._module(), len(self._events), name_of_group=name_of_group, handle=handle
            )

    def _takes_nothing(self, func: OpOverload, result: Any) -> bool:
        """Whether an operator allocated nothing: it returned a view or an argument, and needs no scratch."""
        if not isinstance(result, FakeTensor) or result.layout is not torch.strided:
            return False  # a sparse tensor has no storage of its own
        if hidden.has_recipe(func):
            return False
        storage = result.untyped_storage()
        index = self._ids.get(storage._cdata)
        return index is not None and self.allocations[index].num_bytes == storage.nbytes()

    def _observe(  # noqa: PLR0917 - an operator's call and where it came from
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        operator: str,
        origin: Origin,
    ) -> None:
        """Records an operator's memory; a library's memory and sums of gradients have their own rules."""
        if func is LIBRARY_MEMORY:
            self._take_for_library(result, origin, *args)
            return
        if func is aten.add.Tensor and self._sum_of_gradients(args, result, operator, origin):
            return
        self._record(func, args, kwargs, result, operator, origin)

    def _record(  # noqa: PLR0917 - an operator's call and where it came from
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        operator: str,
        origin: Origin,
    ) -> None:
        """Records the memory that an operator's call allocates: outputs, workspaces and scratch."""
        scratch = hidden.recipe(func, args, kwargs)
        if scratch is None or not any(map(self._is_ours, tree_leaves((args, result)))):
            scratch = _NOTHING_BESIDE
        held = self._take(scratch.before, operator, origin)
        calls = iter(convolutions(func, args, result))
        for leaf in (result,) if isinstance(result, FakeTensor) else tree_leaves(result):
            if not self._is_ours(leaf):
                continue
            if self._allocate(leaf, operator, origin):
                counted_shape = counted.counted_shape(func, args, leaf)
                if counted_shape:
                    self.allocations[-1] = dataclasses.replace(
                        self.allocations[-1], counted_shape=counted_shape
                    )
                workspace = next(calls, None)
                if workspace is not None:
                    self._use_workspace(workspace, operator, origin)
        held += self._take(scratch.after, operator, origin)
        self._give_back(held)

    def _take(self, stages: Sequence[hidden.Stage], operator: str, origin: Origin) -> list[int]:
        """Records an operator's scratch memory; returns the allocations that live until the operator ends.

        Args:
            stages: requests of the stages; blocks of lifetime `STAGE` are freed at the end of theirs.
            operator: name of the operator.
            origin: place that it was called from.

        Returns:
            Indices of the allocations that are to be freed when the operator ends.
        """
        if not stages:
            return []
        held: dict[hidden.Lifetime, list[int]] = {lifetime: [] for lifetime in hidden.Lifetime}
        for stage in stages:
            for request in stage:
                lifetime = request.lifetime
                if lifetime is hidden.Lifetime.THREAD:
                    if self._in_backward in self._threads_with_handle:
                        continue
                    if followed_release.is_before(WORKSPACE_OF_EACH_PRODUCT):
                        self._threads_with_handle.add(self._in_backward)
                    else:
                        lifetime = hidden.Lifetime.OPERATOR
                held[lifetime].append(self._append(_scratch_allocation(request, operator, origin)))
            self._give_back(held[hidden.Lifetime.STAGE])
            held[hidden.Lifetime.STAGE].clear()
        return held[hidden.Lifetime.OPERATOR]

    def _is_ours(self, value: object) -> bool:
        """Whether `value` is a fake tensor on the device whose memory is recorded, in a strided layout."""
        return (
            isinstance(value, FakeTensor)
            and value.fake_device.type == self._device_type
            and (value.fake_device.index or 0) == self.card
            and value.layout is torch.strided  # a sparse tensor consists of strided ones
        )

    def _give_back(self, indices: Iterable[int]) -> None:
        self._events += [~index for index in indices]

    def _take_for_library(
        self, tensor: torch.Tensor, origin: Origin, span_bytes: list[int], operator: str, kept: bool
    ) -> None:
        """Records memory that a library, such as cuDNN, allocates inside an operator (`library_memory`).

        Args:
            tensor: fake tensor that stands for the memory.
            origin: place that the operator was called from.
            span_bytes: low, likely and high size.
            operator: name of the operator.
            kept: whether the memory outlives the operator; else it is a workspace.
        """
        low, _, high = span_bytes
        if self._allocate(tensor, operator, origin, may_be_more=high > 0):
            self.allocations[-1] = dataclasses.replace(
                self.allocations[-1],
                span_bytes=(low, high),
                category=self.category if kept else Category.WORKSPACE,
            )

    def _allocate(
        self, tensor: torch.Tensor, operator: str, origin: Origin, *, may_be_more: bool = False
    ) -> bool:
        """Records a tensor's storage unless it is recorded already or empty; returns whether it did so."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        index = self._ids.get(key)
        if index is not None:
            if self.allocations[index].num_bytes == storage.nbytes():
                return False
            self._freed(key)  # the storage was resized in place
        if not storage.nbytes() and not may_be_more:
            return False
        self._ids[key] = self._append(_allocation(tensor, self.category, operator, origin))
        self._watch(storage)
        return True

    def _append(self, allocation: Allocation) -> int:
        index = len(self.allocations)
        self.allocations.append(allocation)
        self._events.append(index)
        return index

    def _use_workspace(self, convolution: Convolution, operator: str, origin: Origin) -> None:
        """Records a convolution's workspace, freed immediately; a replay of the trace finds its size."""
        self._events.append(
            ~self._append(
                Allocation(
                    num_bytes=0,
                    category=Category.WORKSPACE,
                    operator=operator,
                    module=origin.module,
                    source=origin.source,
                    stack=origin.stack,
                    convolution=convolution,
                    stream=streams.current_number(),
                )
            )
        )

    def _watch(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata

        def freed(_: weakref.ref[torch.UntypedStorage]) -> None:
            self._freed(key)

        self._storages[key] = weakref.ref(storage, freed)

    def _freed(self, key: int) -> None:
        """Records that a storage was freed, or that a pending sum of gradients took over its memory."""
        del self._storages[key]
        index = self._ids.pop(key)
        if self._closed:
            return
        pending = self._pending
        if pending is not None:
            self._pending = None
            if pending.target == index:
                self._give_memory(pending, index)
                return
            self._commit(pending)
        self._events.append(~index)

    def _sum_of_gradients(self, args: tuple[Any, ...], result: Any, operator: str, origin: Origin) -> bool:
        """Whether an addition is autograd's sum of two gradients, which a GPU may compute in place.

        `accumulate` of torch/csrc/autograd/input_buffer.cpp adds into the older gradient if it holds
        the last reference to it, but never if the gradient is a tensor subclass, as fake tensors are.
        So the sum is kept pending: if the older gradient is freed next, the sum takes over its memory,
        else the sum is recorded as an allocation.
        """
        node = current_node() if self._in_backward else None
        if node is None or not called_by_the_engine(sys._getframe(2)):
            return False
        older = args[0]
        index = self._ids.get(older.untyped_storage()._cdata)
        if index is None or older._is_view() or extent(older) != older.numel():
            return False
        if index >= self._node_start and not _gives_two_gradients_to_one_input(node):
            return False  # the node's own formula adds two temporaries of its own
        self._pending = _PendingSum(
            index, result.untyped_storage(), _allocation(result, self.category, operator, origin)
        )
        return True

    def _settle_pending(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._commit(pending)

    def _commit(self, pending: _PendingSum) -> None:
        self._give_memory(pending, self._append(pending.allocation))

    def _give_memory(self, pending: _PendingSum, index: int) -> None:
        """Records that a sum of two gradients, whose memory was not decided yet, lies in an allocation.

        Args:
            pending: the sum.
            index: index of the allocation.
        """
        self._ids[pending.output._cdata] = index
        self._watch(pending.output)
        if self._log is not None and pending.call is not None:
            self._log.settle(pending.call, index)

    def _origin(self, frame: FrameType) -> Origin:
        """Origin of the operator called from `frame`; in backward, that of the node's forward operator."""
        place = place_of(frame)
        if place is not None:
            module = place.module or (self._modules[-1] if self._modules else "")
            return Origin(module, place.lines[-1] if place.lines else "", place.lines)
        node = self._node_of_backward()
        if node is not None and not self._modules:  # with modules, backward recomputes one
            return self._origins.get(node + 1, Origin())
        origin = self._here(frame)
        # A node takes its sequence number just before its operator runs.
        self._origins.setdefault(sequence_number(), origin)
        return origin

    def _note_origin(self, frame: FrameType) -> None:
        """Stores a forward operator's origin, which operators of its autograd node get in backward."""
        node = self._node_of_backward()
        if node is not None and not self._modules:
            return
        number = sequence_number()
        if number not in self._origins:
            self._origins[number] = self._here(frame)

    def _module(self) -> str:
        """Name of the module whose forward or backward is running; empty for none."""
        if self._modules:
            return self._modules[-1]
        node = self._node_of_backward()
        return "" if node is None else self._origins.get(node + 1, Origin()).module

    def _node_of_backward(self) -> int | None:
        """Sequence number of the autograd node that backward runs; None outside backward."""
        node = current_node() if self._in_backward else None
        if node is None:
            return None
        number: int = node._sequence_nr()
        if number != self._node:
            self._node, self._node_start = number, len(self.allocations)
        return number

    def _here(self, frame: FrameType) -> Origin:
        stack = () if self._stacks is None else self._stacks.of(frame)
        return Origin(self._modules[-1] if self._modules else "", user_source(frame), stack)

    @contextmanager
    def within(self, module: str) -> Iterator[None]:
        """Context in which operators are recorded as called by a module of the given name.

        For wrappers such as `DistributedDataParallel`, which are not submodules of the model.
        """
        self._modules.append(module)
        try:
            yield
        finally:
            self._modules.pop()

    @contextmanager
    def following(self, model: torch.nn.Module | None = None) -> Iterator[None]:
        """Context that tracks which module runs, and when the autograd engine runs backward.

        Every module that this process calls is tracked. Modules are named by their path in `model`; if
        `model` is None, by their path in the outermost module called.
        """
        names = {} if model is None else _module_names(model)

        def enter(module: torch.nn.Module, _args: object) -> None:
            if not self._modules and id(module) not in names:
                names.update(_module_names(module))
            self._modules.append(names.get(id(module), type(module).__name__))

        def leave(_module: torch.nn.Module, _args: object, _result: object) -> None:
            self._modules.pop()

        hooks = torch.nn.modules.module
        handles = [
            hooks.register_module_forward_pre_hook(enter),
            hooks.register_module_forward_hook(leave, always_call=True),
        ]
        engine = EXECUTION_ENGINE.get()
        EXECUTION_ENGINE.replace(_ObservedEngine(engine, self._running_backward))
        try:
            yield
        finally:
            EXECUTION_ENGINE.replace(engine)
            for handle in handles:
                handle.remove()

    @contextmanager
    def _running_backward(self) -> Iterator[None]:
        outer, self._in_backward = self._in_backward, True
        try:
            yield
        finally:
            self._settle_pending()
            self._in_backward = outer
            self.work.wait_for_collectives()


class _ObservedEngine:
    """Wrapper of the autograd engine that enters the context manager `running` whenever backward runs.

    It sees `Tensor.backward` and direct calls of the engine, such as Megatron-LM's.
    """

    def __init__(self, engine: Any, running: Callable[[], AbstractContextManager[None]]) -> None:
        self._engine = engine
        self._running = running

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        with self._running():
            return self._engine.run_backward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def _module_names(model: torch.nn.Module) -> dict[int, str]:
    return {id(module): without_wrappers(name) for name, module in model.named_modules()}


def _gives_two_gradients_to_one_input(node: torch.autograd.graph.Node) -> bool:
    successors = [successor for successor in node.next_functions if successor[0] is not None]
    return len(set(successors)) < len(successors)


def _allocation(tensor: torch.Tensor, category: Category, operator: str, origin: Origin) -> Allocation:
    return Allocation(
        num_bytes=tensor.untyped_storage().nbytes(),
        category=category,
        operator=operator,
        module=origin.module,
        source=origin.source,
        stack=origin.stack,
        dtype=name_of_type(tensor.dtype),
        shape=tuple(tensor.shape),
        stream=streams.current_number(),
    )


def _scratch_allocation(request: hidden.Request, operator: str, origin: Origin) -> Allocation:
    return Allocation(
        num_bytes=0,
        category=Category.WORKSPACE,
        operator=operator,
        module=origin.module,
        source=origin.source,
        stack=origin.stack,
        correction=request.correction,
        scratch=request.scratch,
        stream=streams.current_number(),
    )


def _with_category(allocation: Allocation, category: Category) -> Allocation:
    return dataclasses.replace(allocation, category=category)
