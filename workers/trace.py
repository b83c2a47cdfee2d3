"""The trace artifact: every allocation and free of a few steps, in order, with its provenance.

What a prediction hands to the peak curve and to the views. Standard library only, versioned, and
written in a canonical form, so that its digest names it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

from workers.documents import parse_json
from workers.knobs import Knobs
from workers.plain import from_plain
from workers.setup import Parallel
from workers.work import Convolution, WorkCall, from_document, to_document

TRACE_SCHEMA = "autofit.trace/3"
_Value = TypeVar("_Value", bound=Hashable)
_MOST_CHARACTERS = 4096  # of a name or a line, as of a path
_MOST_LINES = 4_000_000  # of all stacks together
_MOST_MARKS = 10_000
_MOST_DIMENSIONS = 64  # of a tensor, as in PyTorch
_MOST_STREAMS = 256  # PyTorch has 32 of each priority on a device, beside the default one
FORWARD_END = "step 1 output"  # the mark where the model has returned, in a trace that lists tensors


class Category(StrEnum):
    """What an allocation holds.

    `PARAMETER` covers parameters and buffers. `ACTIVATION` is whatever the forward pass and the
    loss allocate. `GRADIENT` is what ends as a parameter's `.grad`; the gradients of activations,
    which pass by in backward, are `OTHER`, with the optimizer's temporaries.
    """

    PARAMETER = "parameter"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    ACTIVATION = "activation"
    INPUT = "input"
    WORKSPACE = "workspace"
    OTHER = "other"


_CATEGORIES = {category.value: category for category in Category}  # quicker than the enumeration


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Memory that an operator takes beside its outputs, sized when the trace is replayed.

    The trace does not fix a size because it can depend on the card, on PyTorch's release and, by
    roundings and thresholds, on the batch.

    Attributes:
        formula: one of those of `workers.predict.curve.scratch`.
        dimensions: what the formula takes, each a line in the batch size.
        element_bytes: size of one element.
    """

    formula: str
    dimensions: tuple[int, ...]
    element_bytes: int


# Operators of what is known as a span alone, whatever the card: what is taken past PyTorch's allocator and
# may be in the host's memory instead; temporaries of an optimizer's step that its library compiles.
MANAGED_MEMORY, COMPILED_STEP = "cudaMallocManaged", "torch.compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One request to the allocator.

    Attributes:
        num_bytes: bytes requested; 0 where `convolution` or `scratch` decides.
        operator: the ATen operator that asked, or the part of the step outside any operator.
        module: path of the `nn.Module` that ran it (in backward: whose forward made the node).
        source: innermost line of the user's code, `file:line:function`.
        correction: the name in `workers.predict.curve.corrections` of what put it there, where that is
            no operator's output.
        span_bytes: the low and the high end of `num_bytes` where that is an estimate of what a
            library asks for, each a line in the batch size; None where it is exact.
        stack: the lines of Python that led to it, outermost first, each `file:line:function`, where
            stacks were asked for; in backward those of the forward pass that made the node. Lines of
            PyTorch and of the standard library have their path from where those are installed.
        name: what model and optimizer call it, where calls were asked for: `conv1.weight`, its gradient
            `conv1.weight.grad`, its state `conv1.weight.exp_avg`; empty for anything else.
        counted_shape: of the tensor that the operator counts in 32 bits, where that is not the one that it
            returns (`workers.predict.recording.counted`); empty for most.
        stream: the CUDA stream that was current, which the allocator keeps the block for; 0 is the default
            one, the others are numbered by the recorder.
        stream_uses: the other streams that `Tensor.record_stream` named while it lived. After its free the
            block is handed out again only when each has done what it was given until then.
    """

    num_bytes: int
    category: Category
    operator: str = ""
    module: str = ""
    source: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    convolution: Convolution | None = None
    correction: str = ""
    scratch: Scratch | None = None
    span_bytes: tuple[int, int] | None = None
    stack: tuple[str, ...] = ()
    name: str = ""
    counted_shape: tuple[int, ...] = ()
    stream: int = 0
    stream_uses: tuple[int, ...] = ()


class Role(StrEnum):
    """What a listed tensor is to the forward pass."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTensor:
    """A tensor of one forward pass, with memory of its own or as a view of another's.

    Attributes:
        name: a parameter's or buffer's own; `input:0` of the batch; of what an operator returns the path of
            the module, the operator and the number of its result: `features.0/convolution:0`.
        storage: the number of the allocation that it lies in; tensors with the same share it.
        element_bytes: size of one element.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    element_bytes: int
    storage: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """By its shape, whatever memory it lies in."""
        return self.num_elements * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedLayer:
    """One call of a module in one forward pass, as a summary of a model lists it.

    Attributes:
        name: path of the module; empty for the model itself.
        module_type: name of its class.
        input_shapes, output_shapes: of the tensors that it was given and that it returned.
        inputs, outputs: the numbers of the allocations that these lie in.
        num_parameters: elements of its own parameters, not of its children's.
        num_weights: elements of its attributes `weight` and `bias`, which is what torchsummary counts.
        is_container: whether it has children.
        is_sequence: whether it is an `nn.Sequential`, which only passes on what its children return.
    """

    name: str
    module_type: str
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    num_parameters: int
    num_weights: int
    is_container: bool
    is_sequence: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator that ran: what a plan of the memory of a whole step has to know.

    Attributes:
        position: so many events came before its own.
        inputs: numbers of the allocations that its tensor arguments lie in.
        outputs: of those that its results lie in; an input's own for a view or a result in place.
        is_elementwise: whether each element of the result depends on those at its place alone.
        name: what Python code bound the result to; empty for a temporary without one.
    """

    position: int
    operator: str
    module: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_elementwise: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A size that depends on values, which a trace does not have.

    Attributes:
        site: the user's line, `file:line:function`.
        what: that has the size.
        size: what was assumed, in elements.
        largest: what it can be at most; None where nothing limits it.
    """

    site: str
    what: str
    size: int
    largest: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSize:
    """The size of a trace's samples, of a workload that makes them of any size.

    Attributes:
        size: such as tokens, or pixels of a side; None where only the workload knows.
        multiple: sizes that lie so far apart differ in nothing that is rounded.
        longest: the largest that the model was made for; None where nothing limits it.
    """

    size: int | None
    multiple: int
    longest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A named position in the events: `position` events come before it."""

    position: int
    name: str


def last_step(marks: Sequence[Mark], num_events: int) -> tuple[int, int]:
    """Where the last step begins and ends that is whole: one with an optimizer's part, if any has one.

    Both are positions in the events; what comes between its last phase and the next step belongs to neither,
    such as a checkpoint.
    """
    named = ((mark.name.split(" ", 2), mark.position) for mark in marks)
    phases = [(words[1], words[2], position) for words, position in named if words[0] == "step"]
    kinds = {phase for _, phase, _ in phases}
    wanted = next((last for last in ("optimizer", "forward") if last in kinds), None)
    numbers = [number for number, phase, _ in phases if phase == wanted]
    if not numbers:
        return num_events, num_events
    positions = [position for number, _, position in phases if number == numbers[-1]]
    later = [mark.position for mark in marks if mark.position > positions[-1]]
    return positions[0], min(later, default=num_events + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """The host waited until a stream had done what it was given.

    Only what waits for `Allocation.stream_uses` depends on it. `Tensor.item`, `Stream.synchronize` and
    `torch.cuda.synchronize` wait for all of it, `Event.synchronize` for what came before the event. Where
    the stream itself had waited for others, their work is done too: each has a wait of its own.

    Attributes:
        position: so many events come before it.
        stream: None for all of them.
        up_to: what was issued before this many events is done; at most `position`.
        releases: whether it then gives back what is cached, as `torch.cuda.empty_cache` does.
    """

    position: int
    stream: int | None
    up_to: int
    releases: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Passes that follow the end of a trace's events and do as its last one did.

    Each takes as much more than the one before as that took more than the one before it.

    Attributes:
        start: position in the events where the last pass begins; it ends with them.
        num_allocations: of a pass. The last ones of a trace are its last pass's, those before them those of
            the pass before.
        times: how many more of them there are.
    """

    start: int
    num_allocations: int
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeRanks:
    """Ranks that have equally large parts of a model, and do the same with them.

    Attributes:
        first: the first of them.
        num_ranks: how many they are.
    """

    first: int
    num_ranks: int


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The memory events of a workload's first steps at one batch size.

    Attributes:
        events: `i` allocates `allocations[i]`, `~i` frees it. What is never freed is alive at the
            end of the last step.
        marks: where each phase begins: `model`, then `step 1 input`, `step 1 forward`,
            `step 1 backward`, `step 1 optimizer`, …
        batch_kind: `typical` or `worst`, where the workload makes both; None where it makes one kind.
        num_ranks: the step is that of one of so many ranks; 1 for a process by itself.
        parallel: how they share the work, `fsdp:8`, or `script:8` as their script has it; empty with
            `DistributedDataParallel`.
        rank: which of those ranks the step is of; 0 with `DistributedDataParallel`, whose ranks are alike.
        alike_ranks: the kinds of ranks that there are; empty where all are alike, or that was not asked for.
        communicators: of a script's ranks, how many each process group has that exchanges anything.
        versions: of what shaped the trace (torch, the recorder).
        tensors: of the first step's forward pass, in their order, where the list was asked for.
        layers: what its modules returned there, in the order in which they ended.
        calls: the operators of all steps in their order, where they were asked for.
        assumptions: the sizes in it that depend on values.
        sample: of a workload that makes samples of any size, theirs.
        notes: what else its reader has to know of how it was made, in sentences.
        repetition: of a generation, the passes that were not traced, one for each further token.
        host_waits: in the order of their positions.
        work: what the operators of its last step had to do, in their order.
    """

    workload: str
    batch_size: int
    mode: str
    optimizer: str
    knobs: Knobs
    allocations: tuple[Allocation, ...]
    events: tuple[int, ...]
    marks: tuple[Mark, ...] = ()
    batch_kind: str | None = None
    num_ranks: int = 1
    parallel: str = ""
    rank: int = 0
    alike_ranks: tuple[AlikeRanks, ...] = ()
    communicators: tuple[int, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    tensors: tuple[ListedTensor, ...] = ()
    layers: tuple[ListedLayer, ...] = ()
    calls: tuple[Call, ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    sample: SampleSize | None = None
    notes: tuple[str, ...] = ()
    repetition: Repetition | None = None
    host_waits: tuple[HostWait, ...] = ()
    work: tuple[WorkCall, ...] = ()

    @property
    def among_ranks(self) -> str:
        """How its ranks share the work, as `Parallel.named` reads it; empty for a process by itself."""
        return self.parallel or (f"ddp:{self.num_ranks}" if self.num_ranks > 1 else "")

    @property
    def shares_as_script(self) -> bool:
        """Whether its ranks are a script's, whose groups were seen as it ran."""
        return Parallel.named(self.parallel).is_of_script

    @property
    def groups(self) -> tuple[int, ...]:
        """How many ranks each process group has that exchanges anything."""
        return self.communicators if self.shares_as_script else Parallel.named(self.among_ranks).mesh

    @property
    def convolves(self) -> bool:
        """Whether the step has a convolution, so that algorithms for them matter."""
        return any(allocation.convolution is not None for allocation in self.allocations)

    @cached_property  # of all of its text, which takes longer than a replay
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def to_dict(self) -> dict[str, Any]:
        """The document's content, ready for `json`."""
        strings, convolutions = _Table[str](), _Table[Convolution]()
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
            for a in self.allocations
        ]
        stacks = _StackTable(strings)
        stacked = [stacks.index(a.stack) for a in self.allocations]
        named = [(number, strings.index(a.name)) for number, a in enumerate(self.allocations) if a.name]
        counted = [(number, a.counted_shape) for number, a in enumerate(self.allocations) if a.counted_shape]
        streams = [
            (number, a.stream, a.stream_uses)
            for number, a in enumerate(self.allocations)
            if a.stream or a.stream_uses
        ]
        calls = [
            [
                c.position,
                strings.index(c.operator),
                strings.index(c.module),
                c.inputs,
                c.outputs,
                int(c.is_elementwise),
                strings.index(c.name),
            ]
            for c in self.calls
        ]
        work = to_document(self.work, convolutions.index, strings.index) if self.work else None
        document: dict[str, Any] = {
            "schema": TRACE_SCHEMA,
            "workload": self.workload,
            "batch_size": self.batch_size,
            "mode": self.mode,
            "optimizer": self.optimizer,
            "knobs": self.knobs.to_dict(),
            "versions": self.versions,
            "strings": strings.values,
            "convolutions": [dataclasses.asdict(each) for each in convolutions.values],
            "allocations": rows,
            "events": self.events,
            "marks": [[m.position, m.name] for m in self.marks],
        }
        written_if_any: dict[str, Any] = {
            "batch_kind": self.batch_kind,
            "num_ranks": self.num_ranks if self.num_ranks > 1 else None,
            "parallel": self.parallel,
            "rank": self.rank,
            "alike_ranks": list(map(dataclasses.asdict, self.alike_ranks)),
            "communicators": self.communicators,
            "tensors": list(map(dataclasses.asdict, self.tensors)),
            "layers": list(map(dataclasses.asdict, self.layers)),
            "stacks": stacks.rows,
            "stacked": stacked if any(stacked) else None,
            "named": named,
            "counted": counted,
            "streams": streams,
            "host_waits": list(map(_host_wait_row, self.host_waits)),
            "calls": calls,
            "assumptions": list(map(dataclasses.asdict, self.assumptions)),
            "sample": None if self.sample is None else dataclasses.asdict(self.sample),
            "notes": self.notes,
            "repetition": None if self.repetition is None else dataclasses.asdict(self.repetition),
            "work": work,
        }
        return document | {name: value for name, value in written_if_any.items() if value}

    def until(self, mark: str) -> Self:
        """The same up to the last mark of that name, if there is one; what is alive there is never freed."""
        named = (each.position for each in self.marks if each.name == mark)
        position = max(named, default=len(self.events))
        marks = tuple(each for each in self.marks if each.position <= position)
        waits = tuple(each for each in self.host_waits if each.position <= position)
        cut = self.repetition is not None and position < len(self.events)
        return dataclasses.replace(
            self,
            events=self.events[:position],
            marks=marks,
            host_waits=waits,
            repetition=None if cut else self.repetition,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads a trace back; raises `ValueError` for another schema or a malformed document."""
        return cls.from_dict(parse_json(text))

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """The same of a document that is read already."""
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != TRACE_SCHEMA:
            raise ValueError(f"expected a trace of schema {TRACE_SCHEMA}, got {schema!r}")
        assert isinstance(data, dict)
        try:
            return cls._from_dict(data)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"the trace is malformed ({error!r}): make it again") from error

    @classmethod
    def _from_dict(cls, data: dict[str, Any]) -> Self:
        strings = from_plain(tuple[str, ...], data["strings"])
        if any(len(text) > _MOST_CHARACTERS for text in strings):
            raise ValueError(f"a name has more than {_MOST_CHARACTERS} characters")
        convolutions = [convolution_from_dict(each) for each in data["convolutions"]]
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
            allocations[number] = dataclasses.replace(
                allocations[number], stream=own, stream_uses=tuple(others)
            )
        marks = [{"position": position, "name": name} for position, name in data["marks"]]
        if len(marks) > _MOST_MARKS:
            raise ValueError(f"it has more than {_MOST_MARKS} marks")
        rows_elsewhere = dict.fromkeys(("allocations", "calls", "events", "host_waits", "work"), ())
        read = {**rows_elsewhere, "marks": marks, "versions": data["versions"]}
        return dataclasses.replace(
            from_plain(cls, {**data, **read}),
            knobs=Knobs(**data["knobs"]),  # of another version's knobs the meaning is not known
            allocations=tuple(allocations),
            events=_integers(data["events"]),
            calls=tuple(_call(row, strings) for row in data.get("calls", ())),
            host_waits=tuple(map(_host_wait, data.get("host_waits", ()))),
            work=from_document(data["work"], convolutions, strings) if "work" in data else (),
        )


class _Table(Generic[_Value]):
    """Names and convolutions repeat thousands of times; each is written once."""

    def __init__(self) -> None:
        self._indices: dict[_Value, int] = {}

    def index(self, value: _Value) -> int:
        return self._indices.setdefault(value, len(self._indices))

    @property
    def values(self) -> list[_Value]:
        return list(self._indices)


class _StackTable:
    """Stacks as a tree: a row is its innermost line and the row of the stack that called it."""

    def __init__(self, strings: _Table[str]) -> None:
        self._strings = strings
        self._indices: dict[tuple[str, ...], int] = {(): 0}
        self.rows: list[tuple[int, int]] = []

    def index(self, stack: tuple[str, ...]) -> int:
        """0 for the empty stack, else the number of its row from 1."""
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


def _integers(values: Iterable[Any]) -> tuple[int, ...]:
    read = tuple(values)
    if not {int}.issuperset(map(type, read)):
        raise TypeError("a whole number is missing where one has to be")
    return read


def _shape(values: Iterable[Any]) -> tuple[int, ...]:
    shape = _integers(values)
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"a tensor has more than {_MOST_DIMENSIONS} dimensions")
    return shape


def _stream(number: Any) -> int:
    (stream,) = _integers([number])
    if not 0 <= stream < _MOST_STREAMS:
        raise ValueError(f"a stream is not numbered from 0 to {_MOST_STREAMS - 1}")
    return stream


def _host_wait_row(wait: HostWait) -> list[Any]:
    return [wait.position, wait.stream, wait.up_to, *([True] if wait.releases else ())]


def _host_wait(row: list[Any]) -> HostWait:
    position, stream, up_to, *releases = row
    position, up_to = _integers((position, up_to))
    if not 0 <= up_to <= position:
        raise ValueError("a host waits for what comes after its wait")
    if releases not in ([], [True]):
        raise ValueError("a host's wait gives back what is cached, or says nothing of it")
    stream = None if stream is None else _stream(stream)
    return HostWait(position=position, stream=stream, up_to=up_to, releases=bool(releases))


def _encoded_correction(allocation: Allocation, strings: _Table[str]) -> list[Any]:
    """What few rows have; the others end before it."""
    if not allocation.correction:
        return []
    scratch = allocation.scratch
    return [
        strings.index(allocation.correction),
        None
        if scratch is None
        else [strings.index(scratch.formula), scratch.dimensions, scratch.element_bytes],
    ]


def _allocation(
    row: list[Any], strings: Sequence[str], convolutions: list[Convolution], stack: tuple[str, ...]
) -> Allocation:
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


def _call(row: list[Any], strings: Sequence[str]) -> Call:
    position, operator, module, inputs, outputs, is_elementwise, name = row
    (position,) = _integers([position])
    return Call(
        position=position,
        operator=strings[operator],
        module=strings[module],
        inputs=_integers(inputs),
        outputs=_integers(outputs),
        is_elementwise=bool(is_elementwise),
        name=strings[name],
    )


def _scratch(row: list[Any], strings: Sequence[str]) -> Scratch:
    formula, dimensions, element_bytes = row
    plain = {"formula": strings[formula], "dimensions": dimensions, "element_bytes": element_bytes}
    return from_plain(Scratch, plain)


def convolution_from_dict(data: dict[str, Any]) -> Convolution:
    """The inverse of `dataclasses.asdict`, after a passage through JSON."""
    return from_plain(Convolution, data)
