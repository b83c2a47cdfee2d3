"""Graph of one step's kernels and the values that they read and write, for memory planning.

A trace shows when eager PyTorch frees a value: when Python drops the last reference. An executor that has
the whole graph can free a value as soon as its last reader has run.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autofit.errors import UsageError
from autofit.explain.profile import Profile, lifetimes, phases
from autofit.explain.sizes import element_bytes
from autofit.explain.views.selection import phases_of
from autofit_workers.spec.trace import Call, Category

# Inputs and results of a step: no plan may free or overwrite them before eager mode does.
KEPT = frozenset({Category.PARAMETER, Category.OPTIMIZER_STATE, Category.INPUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Allocation that a step makes or frees, with its lifetime in PyTorch's eager mode.

    Attributes:
        start: number of memory events before eager mode makes it; at least the step's start.
        stop: number of memory events before eager mode frees it; at most the step's end.
        num_bytes: requested bytes.
        element_bytes: bytes of one element; 0 if the memory is no tensor.
        is_kept: whether a memory plan must neither free it early nor overwrite it.
        escapes: whether it outlives the step, so a later step may read it.
        name: Python name that it is bound to; empty for a temporary.
    """

    start: int
    stop: int
    num_bytes: int
    element_bytes: int
    is_kept: bool
    escapes: bool
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Operator call of a step that computes something, as opposed to a view.

    Attributes:
        start: number of memory events before this call.
        stop: number of memory events before the next call.
        reads: indices of the allocations that it reads.
        makes: indices of the allocations that it makes for its results.
        overwrites: indices of the allocations that it changes in place.
        is_elementwise: whether each element of the result depends only on the inputs' elements at its place.
        num_elements: number of elements of the result; 0 if it has several results, or none.
    """

    start: int
    stop: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    overwrites: tuple[int, ...]
    is_elementwise: bool
    num_elements: int

    @property
    def writes(self) -> tuple[int, ...]:
        return (*self.makes, *self.overwrites)

    @property
    def touches(self) -> frozenset[int]:
        return frozenset((*self.reads, *self.writes))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    """Graph of one step of a profile: its operators (kernels), and the allocations they read and write.

    Attributes:
        step: number of the step.
        start: number of memory events before the step.
        stop: number of memory events up to the step's end.
        resident_bytes: bytes of memory that lives from before the step to after it.
        values: all other allocations that live in the step, by number.
        kernels: kernels of the step, in their order.
        views: for each allocation that is viewed, the number of kernels that ran before each of its views. A
            view neither reads nor writes, but later calls may use it.
    """

    step: int
    start: int
    stop: int
    resident_bytes: int
    values: dict[int, Value]
    kernels: tuple[Kernel, ...]
    views: dict[int, list[int]]


def step_graph(profile: Profile, step: int | None = None) -> StepGraph:
    """Graph of one step of a profile: its operators, and the allocations that they read and write.

    Args:
        step: number of the step. None for the last step; of several steps it is a steady one, as it begins
            with optimizer states.

    Raises:
        UsageError: the profile has no such step, or does not list the calls of operators.
    """
    if profile.recorded is not None:
        raise UsageError(
            "the plan needs operator calls, which no memory snapshot has: predict the model with --model"
        )
    if not profile.trace.calls:
        raise UsageError(
            "the plan needs operator calls, which this profile does not contain: save it again with "
            "`autofit profile … --save FILE`"
        )
    step = max(phase.step for phase in phases(profile)) if step is None else step
    found = phases_of(profile, step)
    start, stop = found[0].start, found[-1].stop
    resident_bytes, values = _values(profile, start, stop)
    calls = _calls(profile, start, stop)
    kernels, views = _kernels(profile, calls, values, stop)
    return StepGraph(
        step=step,
        start=start,
        stop=stop,
        resident_bytes=resident_bytes,
        values=_named(values, calls),
        kernels=tuple(kernels),
        views=views,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Duration for which a memory plan needs a value: until its last reader, or as long as in eager mode.

    Attributes:
        stop: number of memory events before the value may be freed: after its last reader if possible. It is
            as in eager mode for values that no kernel reads, that must be kept, that outlive the step, or
            that are written or viewed after their last reader.
        last_kernel: index of the last kernel that reads or writes it; None if none does.
    """

    stop: int
    last_kernel: int | None


def uses(graph: StepGraph) -> dict[int, Use]:
    """Time until which a memory plan needs each value of a step, by the number of its allocation."""
    last_reader: dict[int, int] = {}
    last_kernel: dict[int, int] = {}
    for index, kernel in enumerate(graph.kernels):
        for number in kernel.writes:
            last_kernel[number] = index
        for number in kernel.reads:
            last_kernel[number] = last_reader[number] = index
    found = {}
    for number, value in graph.values.items():
        stop, reader = value.stop, last_reader.get(number)
        if (
            reader is not None
            and reader == last_kernel[number]
            and graph.views.get(number, [0])[-1] <= reader
            and not value.is_kept
            and not value.escapes
        ):
            stop = min(stop, graph.kernels[reader].stop)
        found[number] = Use(stop=stop, last_kernel=last_kernel.get(number))
    return found


def _values(profile: Profile, start: int, stop: int) -> tuple[int, dict[int, Value]]:
    """Memory of a step: bytes that live all through it, and its other allocations.

    Args:
        start: number of memory events before the step.
        stop: number of memory events up to the step's end.

    Returns:
        Requested bytes of the allocations that live all through the step; the other allocations that live in
        it, by number.
    """
    found = lifetimes(profile)
    resident_bytes = 0
    values = {}
    for number, (birth, death) in enumerate(zip(found.births, found.deaths, strict=True)):
        is_over = death <= start and death < len(profile.trace.events)
        if birth >= stop or is_over:
            continue
        allocation, num_bytes = profile.trace.allocations[number], profile.requested_bytes[number]
        if birth < start and death >= stop:
            resident_bytes += num_bytes
            continue
        values[number] = Value(
            start=max(birth, start),
            stop=min(death, stop),
            num_bytes=num_bytes,
            element_bytes=element_bytes(allocation.dtype),
            is_kept=allocation.category in KEPT,
            # A gradient that outlives the step is freed before the next step makes one, so nothing reads it.
            escapes=death >= stop and allocation.category is not Category.GRADIENT,
        )
    return resident_bytes, values


def _calls(profile: Profile, start: int, stop: int) -> list[Call]:
    """Operator calls that belong to a step.

    Calls between two memory events have the same position. Of those at the boundary between two steps, the
    ones before the first that allocates belong to the earlier step, which ends with in-place calls.

    Args:
        start: number of memory events before the step.
        stop: number of memory events up to the step's end.
    """
    calls = profile.trace.calls

    def first_of(position: int) -> int:
        index = bisect_left(calls, position, key=lambda call: call.position)
        while index < len(calls) and calls[index].position == position:
            if _makes(calls[index], profile.trace.events[position : position + 1]):
                break
            index += 1
        return index

    return list(calls[first_of(start) : first_of(stop)])


def _makes(call: Call, events: Sequence[int]) -> bool:
    """Whether an operator call makes the allocation of a memory event.

    Args:
        events: the event as a sequence of one, or an empty one after the last event.
    """
    return bool(events) and events[0] in call.outputs and events[0] not in call.inputs


def _named(values: dict[int, Value], calls: Iterable[Call]) -> dict[int, Value]:
    names = {number: call.name for call in calls if call.name for number in call.outputs}
    return {
        number: dataclasses.replace(value, name=names[number]) if number in names else value
        for number, value in values.items()
    }


def _kernels(
    profile: Profile, calls: Sequence[Call], values: dict[int, Value], stop: int
) -> tuple[list[Kernel], dict[int, list[int]]]:
    """Kernels of a step; and for each allocation that is viewed, how many kernels ran before each view."""
    made: set[int] = set()
    kernels: list[Kernel] = []
    views: dict[int, list[int]] = {}
    bounds = [*(call.position for call in calls), stop]
    for call, (call_start, call_stop) in zip(calls, itertools.pairwise(bounds), strict=True):
        makes = tuple(
            number
            for number in dict.fromkeys(call.outputs)
            if number in values and values[number].start >= call_start and number not in made
        )
        made.update(makes)
        # Autograd adds up gradients in place by an operator without an in-place name; views are never
        # element-wise.
        in_place = _is_in_place(call.operator) or (call.is_elementwise and not makes)
        if call.outputs and not makes and not in_place:
            for number in dict.fromkeys(call.outputs):
                views.setdefault(number, []).append(len(kernels))
            continue
        # Some in-place operators on lists of tensors return nothing.
        written = [n for n in call.outputs if n not in makes] or call.inputs
        overwrites = tuple(dict.fromkeys(written)) if in_place else ()
        writes = (*makes, *overwrites)
        kernels.append(
            Kernel(
                start=call_start,
                stop=call_stop,
                reads=tuple(dict.fromkeys(call.inputs)),
                makes=makes,
                overwrites=overwrites,
                is_elementwise=call.is_elementwise,
                num_elements=math.prod(profile.trace.allocations[writes[0]].shape) if len(writes) == 1 else 0,
            )
        )
    return kernels, views


def _is_in_place(operator: str) -> bool:
    """Whether an operator writes to a given tensor: in place or by `out=`.

    Examples are `aten.add_.Tensor` and `aten.add.out`.
    """
    _, _, rest = operator.partition(".")
    name, _, overload = rest.partition(".")
    return name.endswith("_") or overload.endswith("out")
