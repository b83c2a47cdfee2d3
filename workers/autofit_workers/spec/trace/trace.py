"""Trace artifact: every allocation and free of a few steps, in order, with its provenance.

Peak curves and the views of a prediction are made from it. The module needs the standard library only. A
trace's document has a version and a canonical form, so that its digest identifies it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autofit_workers.spec.documents import parse_json
from autofit_workers.spec.former import former_module, with_former_paths
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.trace.parts import (
    AS_ASKED,
    AlikeRanks,
    Allocation,
    Assumption,
    BatchCount,
    Call,
    HostWait,
    ListedLayer,
    ListedTensor,
    Mark,
    Repetition,
    SampleSize,
    TracedModel,
)
from autofit_workers.spec.trace.rows import (
    Table,
    allocation_rows,
    call_rows,
    convolution_from_dict,
    host_wait_rows,
    integers,
    read_allocations,
    read_calls,
    read_host_waits,
)
from autofit_workers.spec.trace.seen import Lengths, Seen
from autofit_workers.spec.work import Convolution, WorkCall, from_document, to_document

# Beginning of the note in a trace that was made outside the process boundary.
UNPROTECTED = "not all that the workload does was kept from taking effect"
TRACE_SCHEMA = "autofit.trace/3"
_MOST_CHARACTERS = 4096  # of a name or a source line, as of a path
_MOST_MARKS = 10_000


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Memory events of a workload's first steps at one batch size.

    Attributes:
        events: `i` allocates `allocations[i]`, `~i` frees it. Allocations that are never freed are alive
            at the end of the last step.
        marks: where each phase begins: `model`, then `step 1 input`, `step 1 forward`,
            `step 1 backward`, `step 1 optimizer`, …
        batch_kind: `typical`, or `worst` for the largest batches of the data, if the workload makes both;
            None if it makes one kind.
        batch_count: how the size of a batch was found out, and how many batches a step has.
        num_ranks: number of ranks that train together, of which one was traced; 1 for a single process.
        parallel: how the ranks share the work, such as `fsdp:8`, or `script:8` if their script decides it;
            empty with `DistributedDataParallel` and for a single process.
        rank: rank that was traced; 0 with `DistributedDataParallel`, whose ranks are alike.
        alike_ranks: groups of ranks that hold equally large parts of the model and do the same; empty if all
            ranks do, or in traces without this list.
        communicators: for a script's ranks, the number of ranks of each process group that exchanges data.
        versions: versions of torch and of the code that made the trace.
        tensors: tensors of the first step's forward pass, in their order, if the spec has `with_tensors`.
        layers: calls of modules in the same forward pass, in the order in which they ended.
        calls: operators of all steps in their order, if the spec has `with_calls`.
        assumptions: assumed sizes of quantities that depend on tensors' values, which a trace does not have.
        model: the model as it was built; None if a script builds it.
        sample: size of the samples, for a workload that makes samples of any size.
        notes: further sentences on how the trace was made, for its reader.
        repetition: untraced passes of a text generation, one for each further token; None for other steps.
        host_waits: waits of the host, in the order of their positions.
        work: operator calls of the last step with their tensors, in their order; their times are predicted.
        lengths: sizes of a script's batches if they differ; else None.
        seen: part of the run that was traced; None in traces of earlier versions, and of a text generation.
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
    batch_count: BatchCount = AS_ASKED
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
    model: TracedModel | None = None
    sample: SampleSize | None = None
    notes: tuple[str, ...] = ()
    repetition: Repetition | None = None
    host_waits: tuple[HostWait, ...] = ()
    work: tuple[WorkCall, ...] = ()
    seen: Seen | None = None
    lengths: Lengths | None = None

    @property
    def among_ranks(self) -> str:
        """Parallelism of the traced step: text of `--parallel`, or `script:N`; empty for one process."""
        return self.parallel or (f"ddp:{self.num_ranks}" if self.num_ranks > 1 else "")

    @property
    def shares_as_script(self) -> bool:
        """Whether the traced script split the work among ranks itself, by process groups that it made."""
        return Parallel.named(self.parallel).is_of_script

    @property
    def groups(self) -> tuple[int, ...]:
        """Number of ranks of each process group that exchanges data on a rank."""
        return self.communicators if self.shares_as_script else Parallel.named(self.among_ranks).mesh

    @property
    def convolves(self) -> bool:
        """Whether the step has a convolution, so convolution algorithms matter."""
        return any(allocation.convolution is not None for allocation in self.allocations)

    @cached_property  # hashes the whole text, which takes longer than a replay
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @cached_property
    def identity(self) -> str:
        """Digest of the traced step by which stored studies (records of searches) of it are found.

        It is computed as version 0.2 did, so that older studies are found too. It leaves out how the step was
        made: notes on the process boundary, the source of the batch size, the model, and which part of the
        run was traced.
        """
        notes = tuple(note for note in self.notes if not note.startswith(UNPROTECTED))
        step = dataclasses.replace(
            self,
            workload=former_module(self.workload),
            notes=notes,
            batch_count=AS_ASKED,
            model=None,
            seen=None,
            lengths=None,
        )
        return hashlib.sha256(with_former_paths(step.to_json()).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def to_dict(self) -> dict[str, Any]:
        """Document of the trace, as plain values that `json` can write."""
        strings, convolutions = Table[str](), Table[Convolution]()
        rows, of_few = allocation_rows(self.allocations, strings, convolutions)
        calls = call_rows(self.calls, strings)
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
            "batch_count": None if self.batch_count == AS_ASKED else dataclasses.asdict(self.batch_count),
            "num_ranks": self.num_ranks if self.num_ranks > 1 else None,
            "parallel": self.parallel,
            "rank": self.rank,
            "alike_ranks": list(map(dataclasses.asdict, self.alike_ranks)),
            "communicators": self.communicators,
            "tensors": list(map(dataclasses.asdict, self.tensors)),
            "layers": list(map(dataclasses.asdict, self.layers)),
            **of_few,
            "host_waits": host_wait_rows(self.host_waits),
            "calls": calls,
            "assumptions": list(map(dataclasses.asdict, self.assumptions)),
            "model": None if self.model is None else dataclasses.asdict(self.model),
            "sample": None if self.sample is None else dataclasses.asdict(self.sample),
            "notes": self.notes,
            "repetition": None if self.repetition is None else dataclasses.asdict(self.repetition),
            "work": work,
            "lengths": None if self.lengths is None else dataclasses.asdict(self.lengths),
            "seen": None if self.seen is None else dataclasses.asdict(self.seen),
        }
        return document | {name: value for name, value in written_if_any.items() if value}

    def until(self, mark: str) -> Self:
        """Part of the trace up to the last mark named `mark`, or the whole trace if there is none.

        Blocks alive at the mark are never freed.
        """
        named = (each.position for each in self.marks if each.name == mark)
        position = max(named, default=len(self.events))
        marks = tuple(each for each in self.marks if each.position <= position)
        waits = tuple(each for each in self.host_waits if each.position <= position)
        cut = self.repetition is not None and position < len(self.events)
        seen = self.seen
        if seen is not None:
            ends = tuple(end for end in seen.step_ends if end <= position)
            seen = dataclasses.replace(seen, step_ends=ends)
        return dataclasses.replace(
            self,
            events=self.events[:position],
            marks=marks,
            host_waits=waits,
            repetition=None if cut else self.repetition,
            seen=seen,
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads a trace from JSON; raises `ValueError` for another schema or a malformed document."""
        return cls.from_dict(parse_json(text))

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Reads a trace from a parsed JSON document; raises `ValueError` if it is no trace of this schema."""
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
        """Trace read from a parsed document of the present schema; raises for malformed content."""
        strings = from_plain(tuple[str, ...], data["strings"])
        if any(len(text) > _MOST_CHARACTERS for text in strings):
            raise ValueError(f"a name has more than {_MOST_CHARACTERS} characters")
        convolutions = [convolution_from_dict(each) for each in data["convolutions"]]
        marks = [{"position": position, "name": name} for position, name in data["marks"]]
        if len(marks) > _MOST_MARKS:
            raise ValueError(f"it has more than {_MOST_MARKS} marks")
        rows_elsewhere = dict.fromkeys(("allocations", "calls", "events", "host_waits", "work"), ())
        read = {**rows_elsewhere, "marks": marks, "versions": data["versions"]}
        return dataclasses.replace(
            from_plain(cls, {**data, **read}),
            knobs=Knobs(**data["knobs"]),  # raises for knobs of other versions, whose meaning is not known
            allocations=read_allocations(data, strings, convolutions),
            events=integers(data["events"]),
            calls=read_calls(data.get("calls", ()), strings),
            host_waits=read_host_waits(data.get("host_waits", ())),
            work=from_document(data["work"], convolutions, strings) if "work" in data else (),
        )
