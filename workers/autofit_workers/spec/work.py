"""Work of a step's operators on a device, from which times are predicted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import Self, StrEnum


class ConvPass(StrEnum):
    """Pass of a convolution: its output, the gradient of its input, or of its weight."""

    FPROP = "fprop"
    DGRAD = "dgrad"
    WGRAD = "wgrad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """Forward pass of a convolution, or one of the two gradients of its backward pass.

    A trace has no size for its workspace, which is computed when the trace is replayed: it depends on the
    algorithm, on the card and, not as a polynomial, on the batch size.

    Attributes:
        conv_pass: which of the passes it is.
        input_shape, weight_shape, output_shape: N×C×spatial, K×C/groups×filter, N×K×spatial (the
            shapes of the forward convolution, in every pass; a transposed convolution is the
            dgrad of the convolution that has its output as input).
        element_bytes: size of one element of the input.
        dtype: PyTorch's name of the input's type, without `torch.`.
        transposed: whether it was called as a transposed convolution.
    """

    conv_pass: ConvPass
    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: str
    element_bytes: int
    channels_last: bool = False
    transposed: bool = False

    def of_samples(self, num_samples: int) -> Self:
        """Convolution pass of the same layer with another number of samples."""
        return dataclasses.replace(
            self,
            input_shape=(num_samples, *self.input_shape[1:]),
            output_shape=(num_samples, *self.output_shape[1:]),
        )


class Layout(StrEnum):
    """Order of a tensor's elements in memory.

    `TRANSPOSED` is contiguous but for an exchange of the last two dimensions; `STRIDED` is any other order,
    or has gaps.
    """

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"
    TRANSPOSED = "transposed"
    STRIDED = "strided"


@dataclass(frozen=True, slots=True)
class Operand:
    """Tensor that an operator takes or returns.

    Attributes:
        shape: shape of the tensor.
        dtype: PyTorch's name of its type, without `torch.`.
        layout: order of its elements in memory.
        repeated: dimensions in which all elements are the same element in memory (stride 0, by `expand`).
    """

    shape: tuple[int, ...]
    dtype: str
    layout: Layout = Layout.CONTIGUOUS
    repeated: tuple[int, ...] = ()

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes that a kernel has to read; an element that `expand` repeats is read once."""
        kept = (size for place, size in enumerate(self.shape) if place not in self.repeated)
        return math.prod(kept) * ELEMENT_BYTES.get(self.dtype, 4)


@dataclass(frozen=True, slots=True)
class Group:
    """Group of ranks that take part in a collective.

    Attributes:
        num_ranks: number of ranks of the group.
        stride: difference between the numbers of one rank and the next in the group.
    """

    num_ranks: int
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """Operator call by name, inputs, outputs and flags: all from which its time is predicted.

    Attributes:
        operator: PyTorch's name, `aten.addmm`.
        inputs, outputs: its tensors on the device, lists flattened. A result in place is both.
        convolutions: convolution passes that it computes: one, or several in backward; empty for others.
        flags: other facts that decide which kernel runs: `pointwise`, `causal`, `training`, or
            `transfer` for a copy between the device and the host.
        group: ranks that take part in a collective; the inputs are then the tensors that this rank gives,
            the outputs those that it gets. None for other operators.
    """

    operator: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    convolutions: tuple[Convolution, ...] = ()
    flags: tuple[str, ...] = ()
    group: Group | None = None


@dataclass(frozen=True, slots=True)
class WorkCall:
    """Call of an operator in the last traced step.

    Attributes:
        work: the operator with its tensors.
        module: path of the module that ran it, as in `Allocation`.
        position: number of the trace's events before it.
        num_views: number of operators since the last `WorkCall` that launch nothing, such as views; they cost
            time on the host only.
        stream: stream that it was launched on; 0 is the default one. A collective that is not waited for at
            once has a stream of its group's own.
        after: calls of other streams that have to be done before it begins, each as its distance in calls
            back from this one. A call before the first one of the step is over already.
    """

    work: Work
    module: str
    position: int
    num_views: int = 0
    stream: int = 0
    after: tuple[int, ...] = ()


ELEMENT_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


def to_document(
    calls: Sequence[WorkCall],
    convolution_index: Callable[[Convolution], int],
    string_index: Callable[[str], int],
) -> dict[str, Any]:
    """JSON document of a step's operator calls.

    It has tables of distinct operators and rows of numbers, because steps repeat the same work often.

    Args:
        calls: the calls.
        convolution_index, string_index: return the index of a value in the trace's document, where each
            distinct convolution and string is written once.
    """
    operands: dict[Operand, int] = {}
    works: dict[Work, int] = {}
    for call in calls:
        works.setdefault(call.work, len(works))
        for operand in (*call.work.inputs, *call.work.outputs):
            operands.setdefault(operand, len(operands))
    document: dict[str, Any] = {
        "operands": [
            [each.shape, string_index(each.dtype), each.layout.value, each.repeated] for each in operands
        ],
        "works": [
            [
                string_index(work.operator),
                [operands[each] for each in work.inputs],
                [operands[each] for each in work.outputs],
                [convolution_index(each) for each in work.convolutions],
                work.flags,
            ]
            for work in works
        ],
        "calls": [
            [works[call.work], string_index(call.module), call.position, call.num_views] for call in calls
        ],
    }
    written_if_any = {
        "groups": [
            [number, work.group.num_ranks, work.group.stride]
            for work, number in works.items()
            if work.group is not None
        ],
        "streams": [
            [number, call.stream, call.after]
            for number, call in enumerate(calls)
            if call.stream or call.after
        ],
    }
    return document | {name: rows for name, rows in written_if_any.items() if rows}


def from_document(
    data: dict[str, Any], convolutions: Sequence[Convolution], strings: Sequence[str]
) -> tuple[WorkCall, ...]:
    """Operator calls read from a document that `to_document` made.

    Raises:
        KeyError, IndexError, TypeError, ValueError: the document is malformed.
    """
    operands = [
        Operand(_whole(shape), strings[dtype], Layout(layout), _whole(repeated))
        for shape, dtype, layout, repeated in data["operands"]
    ]
    works = [
        Work(
            operator=strings[operator],
            inputs=tuple(operands[number] for number in inputs),
            outputs=tuple(operands[number] for number in outputs),
            convolutions=tuple(convolutions[number] for number in convolved),
            flags=from_plain(tuple[str, ...], flags),
        )
        for operator, inputs, outputs, convolved, flags in data["works"]
    ]
    for number, num_ranks, stride in data.get("groups", ()):
        works[number] = dataclasses.replace(works[number], group=Group(*_whole((num_ranks, stride))))
    calls = []
    for work, module, *counts in data["calls"]:
        position, num_views = _whole(counts)
        calls.append(WorkCall(works[work], strings[module], position, num_views))
    for number, stream, after in data.get("streams", ()):
        (own,) = _whole((stream,))
        calls[number] = dataclasses.replace(calls[number], stream=own, after=_whole(after))
    return tuple(calls)


def with_works_apart(data: dict[str, Any], own_convolution: Callable[[int], int]) -> dict[str, Any]:
    """Document of the same operator calls in which each call has rows of its own for its work and operands.

    Args:
        data: a document that `to_document` made, as it is read from JSON.
        own_convolution: returns the index of a further row for a convolution, given the index of its row.
    """
    operands, works, calls, groups = list[Any](), list[Any](), list[Any](), list[Any]()
    group_of = {number: group for number, *group in data.get("groups", ())}

    def own_operand(number: int) -> int:
        operands.append(data["operands"][number])
        return len(operands) - 1

    for number, *rest in data["calls"]:
        operator, inputs, outputs, convolutions, flags = data["works"][number]
        if number in group_of:
            groups.append([len(works), *group_of[number]])
        calls.append([len(works), *rest])
        works.append(
            [
                operator,
                [own_operand(each) for each in inputs],
                [own_operand(each) for each in outputs],
                [own_convolution(each) for each in convolutions],
                flags,
            ]
        )
    apart = {"operands": operands, "works": works, "calls": calls}
    return {**data, **apart, **({"groups": groups} if groups else {})}


def _whole(values: Iterable[Any]) -> tuple[int, ...]:
    read = tuple(values)
    if not {int}.issuperset(map(type, read)) or any(value < 0 for value in read):
        raise TypeError("a whole number is missing where one has to be")
    return read
