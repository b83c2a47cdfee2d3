"""Converts the lists of a trace to rows of its document, with indices for repeated values, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.trace.parts import Allocation, Call, Category, HostWait, Scratch
from autofit_workers.spec.work import Convolution, with_works_apart

_Value = TypeVar("_Value", bound=Hashable)
# Places in the row of an allocation in a document.
BYTES_OF_ROW, SHAPE_OF_ROW, _CONVOLUTION_OF_ROW = 0, 6, 7
_MOST_LINES = 4_000_000  # of all stacks together
_MOST_DIMENSIONS = 64  # of a tensor, as in PyTorch
_MOST_STREAMS = 256  # PyTorch has 32 of each priority on a device, besides the default one
_CATEGORIES = {category.value: category for category in Category}  # quicker than the enumeration


class Table(Generic[_Value]):
    """List of distinct values, so that a document writes a repeated value once and refers to its index."""

    def __init__(self) -> None:
        self._indices: dict[_Value, int] = {}

    def index(self, value: _Value) -> int:
        return self._indices.setdefault(value, len(self._indices))

    @property
    def values(self) -> list[_Value]:
        return list(self._indices)


def integers(values: Iterable[Any]) -> tuple[int, ...]:
    """Tuple of the values, each checked to be a whole number.

    Raises:
        TypeError: a value is not a whole number.
    """
    read = tuple(values)
    if not {int}.issuperset(map(type, read)):
        raise TypeError("a whole number is missing where one has to be")
    return read


def allocation_rows(
    allocations: Sequence[Allocation], strings: Table[str], convolutions: Table[Convolution]
) -> tuple[list[list[Any]], dict[str, Any]]:
    """Encodes a trace's allocations for JSON.

    Args:
        allocations: the allocations.
        strings, convolutions: tables of the document, to which values are added.

    Returns:
        A row for each allocation, and fields of the document for attributes that few allocations have.
    """
    rows = [
        [
            a.num_bytes,
            a.category.value,
            strings.index(a.operator),
            strings.index(a.module),
            strings.index(a.source),
            strings.index(a.dtype),
            list(a.shape),
            None if a.convolution is None else convolutions.index(a.convolution),
            a.span_bytes,
            *_encoded_correction(a, strings),
        ]
        for a in allocations
    ]
    stacks = _StackTable(strings)
    stacked = [stacks.index(a.stack) for a in allocations]
    return rows, {
        "stacks": stacks.rows,
        "stacked": stacked if any(stacked) else None,
        "named": [(number, strings.index(a.name)) for number, a in enumerate(allocations) if a.name],
        "counted": [(number, a.counted_shape) for number, a in enumerate(allocations) if a.counted_shape],
        "streams": [
            (number, a.stream, a.stream_uses)
            for number, a in enumerate(allocations)
            if a.stream or a.stream_uses
        ],
    }


def read_allocations(
    data: Mapping[str, Any], strings: Sequence[str], convolutions: Sequence[Convolution]
) -> tuple[Allocation, ...]:
    """Decodes a trace's allocations from the rows and fields that `allocation_rows` made.

    Args:
        data: the trace's document.
        strings, convolutions: tables of the document.
    """
    rows = data["allocations"]
    stacks = _read_stacks(data.get("stacks", ()), strings)
    stacked = data.get("stacked") or [0] * len(rows)
    allocations = [
        _allocation(row, strings, convolutions, stacks[stack])
        for row, stack in zip(rows, stacked, strict=True)
    ]
    for number, name in data.get("named", ()):
        allocations[number] = dataclasses.replace(allocations[number], name=strings[name])
    for number, shape in data.get("counted", ()):
        allocations[number] = dataclasses.replace(allocations[number], counted_shape=_shape(shape))
    for number, stream, uses in data.get("streams", ()):
        own, *others = map(_stream, (stream, *uses))
        allocations[number] = dataclasses.replace(allocations[number], stream=own, stream_uses=tuple(others))
    return tuple(allocations)


def _allocation(
    row: list[Any], strings: Sequence[str], convolutions: Sequence[Convolution], stack: tuple[str, ...]
) -> Allocation:
    """Allocation decoded from a row of a trace's document."""
    num_bytes, category, operator, module, source, dtype, shape, convolution, span_bytes, *rest = row
    correction, scratch = (strings[rest[0]], rest[1]) if rest else ("", None)
    if type(num_bytes) is not int:
        raise TypeError("an allocation has no whole number of bytes")
    return Allocation(
        num_bytes=num_bytes,
        category=_CATEGORIES[category],
        operator=strings[operator],
        module=strings[module],
        source=strings[source],
        dtype=strings[dtype],
        shape=_shape(shape),
        convolution=None if convolution is None else convolutions[convolution],
        correction=correction,
        scratch=None if scratch is None else _scratch(scratch, strings),
        span_bytes=None if span_bytes is None else from_plain(tuple[int, int], span_bytes),
        stack=stack,
    )


def _encoded_correction(allocation: Allocation, strings: Table[str]) -> list[Any]:
    """Last fields of the row of an allocation that is no operator's output: kind of memory and formula.

    Empty for an operator's output.
    """
    if not allocation.correction:
        return []
    scratch = allocation.scratch
    return [
        strings.index(allocation.correction),
        None
        if scratch is None
        else [strings.index(scratch.formula), scratch.dimensions, scratch.element_bytes],
    ]


def _scratch(row: list[Any], strings: Sequence[str]) -> Scratch:
    formula, dimensions, element_bytes = row
    plain = {"formula": strings[formula], "dimensions": dimensions, "element_bytes": element_bytes}
    return from_plain(Scratch, plain)


class _StackTable:
    """Table of distinct stacks as a tree: a row has a stack's innermost line and the row of its caller."""

    def __init__(self, strings: Table[str]) -> None:
        self._strings = strings
        self._indices: dict[tuple[str, ...], int] = {(): 0}
        self.rows: list[tuple[int, int]] = []

    def index(self, stack: tuple[str, ...]) -> int:
        """Number of a stack's row, counted from 1, which is added if it is new; 0 for the empty stack."""
        if stack not in self._indices:
            caller = self.index(stack[:-1])
            self.rows.append((self._strings.index(stack[-1]), caller))
            self._indices[stack] = len(self.rows)
        return self._indices[stack]


def _read_stacks(rows: Iterable[list[int]], strings: Sequence[str]) -> list[tuple[str, ...]]:
    stacks: list[tuple[str, ...]] = [()]
    num_lines = 0
    for line, caller in rows:
        stacks.append((*stacks[caller], strings[line]))
        num_lines += len(stacks[-1])
        if num_lines > _MOST_LINES:
            raise ValueError(f"its stacks have more than {_MOST_LINES} lines together")
    return stacks


def _shape(values: Iterable[Any]) -> tuple[int, ...]:
    shape = integers(values)
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor has more than {_MOST_DIMENSIONS} dimensions")
    return shape


def _stream(number: Any) -> int:
    (stream,) = integers([number])
    if not 0 <= stream < _MOST_STREAMS:
        raise ValueError(f"a stream is not numbered from 0 to {_MOST_STREAMS - 1}")
    return stream


def call_rows(calls: Iterable[Call], strings: Table[str]) -> list[list[Any]]:
    """Encodes a trace's operator calls as rows for JSON.

    Args:
        calls: the calls.
        strings: table of the document, to which names are added.
    """
    return [
        [
            c.position,
            strings.index(c.operator),
            strings.index(c.module),
            c.inputs,
            c.outputs,
            int(c.is_elementwise),
            strings.index(c.name),
        ]
        for c in calls
    ]


def read_calls(rows: Iterable[list[Any]], strings: Sequence[str]) -> tuple[Call, ...]:
    """Operator calls of a trace, read from the JSON rows that `call_rows` made."""
    return tuple(_call(row, strings) for row in rows)


def _call(row: list[Any], strings: Sequence[str]) -> Call:
    position, operator, module, inputs, outputs, is_elementwise, name = row
    (position,) = integers([position])
    return Call(
        position=position,
        operator=strings[operator],
        module=strings[module],
        inputs=integers(inputs),
        outputs=integers(outputs),
        is_elementwise=bool(is_elementwise),
        name=strings[name],
    )


def host_wait_rows(waits: Iterable[HostWait]) -> list[list[Any]]:
    """Encodes a trace's waits of the host as rows for JSON: position, stream, and the events waited for."""
    return [[wait.position, wait.stream, wait.up_to, *([True] if wait.releases else ())] for wait in waits]


def read_host_waits(rows: Iterable[list[Any]]) -> tuple[HostWait, ...]:
    """Host waits of a trace, read from the JSON rows that `host_wait_rows` made."""
    return tuple(map(_host_wait, rows))


def _host_wait(row: list[Any]) -> HostWait:
    position, stream, up_to, *releases = row
    position, up_to = integers((position, up_to))
    if not 0 <= up_to <= position:
        raise ValueError("a host waits for what comes after its wait")
    if releases not in ([], [True]):
        raise ValueError("a host's wait gives back what is cached, or says nothing of it")
    stream = None if stream is None else _stream(stream)
    return HostWait(position=position, stream=stream, up_to=up_to, releases=bool(releases))


def convolution_from_dict(data: dict[str, Any]) -> Convolution:
    """Makes a convolution from its JSON, which is that of `dataclasses.asdict`."""
    return from_plain(Convolution, data)


def with_rows_apart(document: Mapping[str, Any]) -> dict[str, Any]:
    """Document of the same trace in which no two uses share a row for a convolution or an operator's work.

    Shapes that differ are equal at some batch size by chance, as those of a batch of 10 and of 10 classes.
    They share a row there alone, so documents of different batch sizes would have other numbers of rows.
    """
    convolutions = list[Any]()

    def own(number: int) -> int:
        convolutions.append(document["convolutions"][number])
        return len(convolutions) - 1

    rows = []
    for row in document["allocations"]:
        number = row[_CONVOLUTION_OF_ROW]
        after = row[_CONVOLUTION_OF_ROW + 1 :]
        rows.append(row if number is None else [*row[:_CONVOLUTION_OF_ROW], own(number), *after])
    work = {"work": with_works_apart(document["work"], own)} if "work" in document else {}
    return {**document, "convolutions": convolutions, "allocations": rows, **work}
