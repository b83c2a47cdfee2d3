"""Work of a step's operators at any batch size, from traces at several; dimensions are lines in the batch.

Calls whose dimensions follow the same lines have equal work at every batch size, so their `Work` is made
once. If the traces differ in more than such dimensions, the work is known at the traced batch sizes only.
"""

from __future__ import annotations

import dataclasses
import functools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autofit_workers.replay.curve.lines.call_lines import ConvolutionLines
from autofit_workers.replay.curve.lines.polynomials import (
    Line,
    NotPolynomialError,
    line_through,
    lines_through,
    values_at,
)
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import HostWait, Trace, last_step
from autofit_workers.spec.work import Group, Operand, Work, WorkCall

_DECODE = " decode"  # ends the names of phases of a text generation after its first pass


class BatchDependentWorkError(ValueError):
    """Operators of a step follow no formula in the batch size, so each batch size needs its own trace."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Untraced passes of a text generation, which repeat the last traced pass.

    Each pass makes one token; its work grows by the same amount from pass to pass.

    Attributes:
        num_calls: calls of a pass. The last calls of a step are those of its last pass, and those before them
            those of the pass before.
        times: number of passes that were not traced.
    """

    num_calls: int
    times: int


class EventWait(NamedTuple):
    """Wait of the host until one call, and earlier calls on its stream, are done on the device.

    Attributes:
        number: index of the call before whose launch the host waits.
        call: index of the call that it waits for.
    """

    number: int
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Operator calls of a step with their inputs and outputs, and the host's waits for the device.

    Attributes:
        calls: calls in their order; calls of equal operators on equal tensors share one `Work`.
        in_backward: for each call, whether the autograd engine makes it.
        host_waits: indices of the calls before which the host waits until the device has done all its work
            so far; the number of calls stands for a wait after the last call.
        event_waits: waits of the host for one call and those before it on its stream.
        repeated: passes of a text generation that were not traced; None for other steps.
        first_calls: number of calls of a text generation until its first token, the pass for the prompts; 0
            for other steps.
    """

    calls: tuple[WorkCall, ...]
    in_backward: tuple[bool, ...]
    host_waits: tuple[int, ...] = ()
    repeated: Repeated | None = None
    event_waits: tuple[EventWait, ...] = ()
    first_calls: int = 0

    @property
    def groups(self) -> tuple[Group, ...]:
        """Distinct groups of ranks that exchange data in the step."""
        found = (call.work.group for call in self.calls if call.work.group is not None)
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLines:
    """Operator calls of a step at any batch size; from a single trace, at that trace's batch size only.

    A `Work` is an operator with the shapes of its inputs and outputs.

    Attributes:
        course: the step at the first trace's batch size; other sizes have the same calls in the same order.
        works: each distinct operator, with dimensions that are lines in the batch size.
        number_of: for each call, the index of its operator in `works`.
        only_batch_size: the only batch size at which the step is known; None if it is known at any.
    """

    course: StepWork
    works: Sequence[_WorkLines]
    number_of: Sequence[int]
    only_batch_size: int | None = None

    @classmethod
    def through(cls, traces: Sequence[Trace]) -> Self:
        """Fits each operator's dimensions as lines in the batch size to traces at different batch sizes.

        Raises:
            BatchDependentWorkError: the traces differ in more than dimensions that are lines.
        """
        steps = [work_of(trace) for trace in traces]
        batch_sizes = [trace.batch_size for trace in traces]
        for step, batch_size in zip(steps[1:], batch_sizes[1:], strict=True):
            if not _is_same_course(steps[0], step):
                raise BatchDependentWorkError(
                    f"the step does other work at batch {batch_sizes[0]} and {batch_size}"
                )
        columns, number_of = _numbered([[call.work for call in step.calls] for step in steps])
        line = functools.cache(functools.partial(line_through, tuple(batch_sizes)))
        try:
            works = [_WorkLines.through(lambda values: line(tuple(values)), column) for column in columns]
        except NotPolynomialError as error:
            raise BatchDependentWorkError(
                f"an operator's work is no line in the batch size: {error}"
            ) from error
        only = batch_sizes[0] if len(traces) == 1 else None
        return cls(course=steps[0], works=works, number_of=number_of, only_batch_size=only)

    def at(self, batch_size: int) -> StepWork:
        """Operators of the step, with their inputs and outputs, at a batch size."""
        assert self.only_batch_size in (None, batch_size)
        works = [lines.at(batch_size) for lines in self.works]
        calls = [
            WorkCall(works[number], call.module, call.position, call.num_views, call.stream, call.after)
            for number, call in zip(self.number_of, self.course.calls, strict=True)
        ]
        return dataclasses.replace(self.course, calls=tuple(calls))


def work_of(trace: Trace) -> StepWork:
    """Operators of the last step of a trace, with their inputs and outputs, at the trace's batch size."""
    start, stop = last_step(trace.marks, len(trace.events))
    positions = [call.position for call in trace.work]
    in_step = [wait for wait in trace.host_waits if start <= wait.position <= stop]
    waits = (wait.position for wait in in_step if wait.stream is None)
    repeated = None
    if trace.repetition is not None:
        num_calls = len(positions) - bisect_left(positions, trace.repetition.start)
        repeated = Repeated(num_calls, trace.repetition.times)
    return StepWork(
        calls=trace.work,
        in_backward=_in_backward(trace, positions),
        host_waits=tuple(dict.fromkeys(bisect_left(positions, position) for position in waits)),
        repeated=repeated,
        event_waits=_event_waits(trace.work, positions, in_step),
        first_calls=_first_calls(trace, positions),
    )


def _first_calls(trace: Trace, positions: Sequence[int]) -> int:
    """Number of calls before the first phase `decode`, in which a text generation makes its second token."""
    later = (mark.position for mark in trace.marks if mark.name.endswith(_DECODE))
    return bisect_left(positions, next(later, 0))


def _event_waits(
    calls: Sequence[WorkCall], positions: Sequence[int], waits: Sequence[HostWait]
) -> tuple[EventWait, ...]:
    """Waits of the host for single streams, each as a wait for the last call that the stream then had.

    A wait for a stream without calls is left out.

    Args:
        calls: calls of the step.
        positions: for each call, its position in the trace's events.
        waits: waits of the host during the step.
    """
    by_stream: defaultdict[int, list[int]] = defaultdict(list)
    for number, call in enumerate(calls):
        by_stream[call.stream].append(number)
    found = []
    for wait in waits:
        if wait.stream is None:
            continue
        own = by_stream.get(wait.stream, [])
        num_done = bisect_left(own, bisect_left(positions, wait.up_to))
        if num_done:
            found.append(EventWait(bisect_left(positions, wait.position), own[num_done - 1]))
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class _OperandLines:
    """Tensor of an operator, with each dimension a line in the batch size: constant + slope · batch size.

    Attributes:
        blank: the tensor in the first trace, for type and layout.
        shape: the lines.
    """

    blank: Operand
    shape: tuple[Line, ...]

    @classmethod
    def through(cls, fit: Callable[[Sequence[int]], Line], column: Sequence[Operand]) -> Self:
        return cls(column[0], lines_through(fit, [operand.shape for operand in column]))

    def at(self, batch_size: int) -> Operand:
        blank = self.blank
        return Operand(values_at(self.shape, batch_size), blank.dtype, blank.layout, blank.repeated)


@dataclass(frozen=True, slots=True)
class _WorkLines:
    """Operator whose tensors have dimensions that are lines in the batch size: constant + slope · batch size.

    Attributes:
        blank: the operator in the first trace, for everything but its tensors.
        inputs, outputs, convolutions: its tensors and convolution passes with such dimensions.
    """

    blank: Work
    inputs: tuple[_OperandLines, ...]
    outputs: tuple[_OperandLines, ...]
    convolutions: tuple[ConvolutionLines[Line], ...]

    @classmethod
    def through(cls, fit: Callable[[Sequence[int]], Line], column: Sequence[Work]) -> Self:
        return cls(
            column[0],
            tuple(_OperandLines.through(fit, each) for each in zip(*(w.inputs for w in column), strict=True)),
            tuple(
                _OperandLines.through(fit, each) for each in zip(*(w.outputs for w in column), strict=True)
            ),
            tuple(
                ConvolutionLines.through(fit, each)
                for each in zip(*(w.convolutions for w in column), strict=True)
            ),
        )

    def at(self, batch_size: int) -> Work:
        blank = self.blank
        return Work(
            operator=blank.operator,
            inputs=tuple([operand.at(batch_size) for operand in self.inputs]),
            outputs=tuple([operand.at(batch_size) for operand in self.outputs]),
            convolutions=tuple([call.at(batch_size) for call in self.convolutions]),
            flags=blank.flags,
            group=blank.group,
        )


def _numbered(works: Sequence[Sequence[Work]]) -> tuple[list[tuple[Work, ...]], list[int]]:
    """Distinct operators of a step over several traces, and for each call the index of its operator.

    An operator is given as a tuple: as it is in each trace. Operators are compared by identity: a trace has
    equal ones as one object, and hashing all operands takes longer.

    Args:
        works: for each trace, the operator of each call.
    """
    numbers: dict[tuple[int, ...], int] = {}
    columns: list[tuple[Work, ...]] = []
    number_of = []
    for column in zip(*works, strict=True):
        key = tuple(map(id, column))
        if key not in numbers:
            numbers[key] = len(columns)
            columns.append(column)
        number_of.append(numbers[key])
    return columns, number_of


def _is_same_course(first: StepWork, other: StepWork) -> bool:
    """Whether two steps make the same calls in the same order, apart from the dimensions of tensors."""
    return (
        len(first.calls) == len(other.calls)
        and first.in_backward == other.in_backward
        and first.host_waits == other.host_waits
        and first.event_waits == other.event_waits
        and first.repeated == other.repeated
        and first.first_calls == other.first_calls
        and all(_kind(a) == _kind(b) for a, b in zip(first.calls, other.calls, strict=True))
    )


def _kind(call: WorkCall) -> tuple[object, ...]:
    """Key of an operator call, equal for calls that differ only in the dimensions of tensors."""
    work = call.work
    operands = [(each.dtype, each.layout, each.repeated) for each in (*work.inputs, *work.outputs)]
    of_work = work.operator, len(work.inputs), operands, len(work.convolutions), work.flags, work.group
    return call.num_views, call.stream, call.after, *of_work


def _in_backward(trace: Trace, positions: Sequence[int]) -> tuple[bool, ...]:
    """Whether each call is in a backward pass, judged by the phase marks of the trace.

    Args:
        trace: the trace.
        positions: for each call, its position in the trace's events.
    """
    starts = [mark.position for mark in trace.marks]
    begins_backward = [False, *(mark.name.endswith(" backward") for mark in trace.marks)]
    return tuple([begins_backward[bisect_right(starts, position)] for position in positions])
