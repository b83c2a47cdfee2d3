"""A run of a language model as a table has it, and what is predicted of it from one trace.

The tables measure different things, most of them after a step or a phase and not at a peak. So each run
says which quantities it measured, by name, and each name is computed here, from the trace of the run's own
batch: nothing is interpolated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from statistics import median
from tempfile import mkdtemp

import torch

from autofit_workers.replay.allocator import AllocatorSettings
from autofit_workers.replay.allocator.caching import CachingAllocator
from autofit_workers.replay.allocator.pools import AllocatorOutOfMemory
from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.replay.vendors import offline_source
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import LIKELY_SHARE, Parallel, Setup
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.workload.workload import Workload
from tests.bench.language.unlike_lengths import NUM_ORDERS, PassesOfLengths, Texts, batches

Quantity = Callable[["Seen"], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikeLengths:
    """Texts of unlike lengths that a run trained on.

    Attributes:
        make: its workload, all texts of so many tokens.
        data: the data sets that they are of.
        accumulated: passes before each step of the optimizer.
    """

    make: Callable[[int], Workload]
    data: tuple[Texts, ...]
    accumulated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a table, and what was measured of it.

    Attributes:
        name: unlike any other of the table.
        group: the method or model that tables are split by.
        measured: bytes, by the name of a quantity of `QUANTITIES`.
        usable_bytes: what PyTorch may reserve of the card; None where nothing is said of that.
        fits: whether it ran; False where it ran out of the card's memory.
        others: bytes that others' rules say its peak is, by their names.
    """

    table: str
    name: str
    group: str
    batch_size: int
    architecture: str
    measured: Mapping[str, int] = field(default_factory=dict)
    usable_bytes: int | None = None
    fits: bool = True
    others: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UntracedRun(Measured):
    """A run of what is no step.

    Attributes:
        predict: predicts its quantities.
    """

    predict: Callable[[], Mapping[str, int]]


class Traced(Measured, ABC):
    """A run whose steps are traced."""

    __slots__ = ()

    @abstractmethod
    def trace(self) -> Trace:
        """Traces it, in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Traced):
    """A run of a workload.

    Attributes:
        make: the workload, called in the process that traces it.
        lengths: of what it trained on, where these are unlike.
        parallel: how ranks shared the work, of which one is traced.
        nonzero_share: how much of what it may select a mask does whose values are not known.
    """

    make: Callable[[], Workload]
    knobs: Knobs = field(default_factory=Knobs)
    parallel: Parallel = field(default_factory=Parallel)
    nonzero_share: float = LIKELY_SHARE
    lengths: UnlikeLengths | None = None

    def trace(self) -> Trace:
        return self.trace_of(self.make())

    def trace_of(self, workload: Workload) -> Trace:
        """Traces a workload as this run's."""
        from autofit_workers.tracing.fake import dynamo
        from autofit_workers.tracing.fake.libraries import of_transformers
        from autofit_workers.tracing.kernels import triton
        from autofit_workers.tracing.probe import trace_workload

        dynamo.install()
        of_transformers.install()
        triton.install()
        reference = WorkloadRef(kind="import", target=self.name)
        spec = TrialSpec(
            workload=reference,
            batch_size=self.batch_size,
            probe=Probe.PREDICT,
            knobs=self.knobs,
            setup=Setup(parallel=self.parallel, nonzero_share=self.nonzero_share),
        )
        return trace_workload(workload, spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun(Traced):
    """A run of a training script, as it is. It wants a process of its own.

    Attributes:
        lay: puts what the script reads into a folder, and says how it is called.
        keeps_batch: whether it runs at its own batch size.
    """

    lay: Callable[[Path], Script]
    keeps_batch: bool = False

    def trace(self) -> Trace:
        from autofit_workers.tracing.fake import fake_gpu
        from autofit_workers.tracing.probe import trace_script

        fake_gpu.install()  # before `lay` imports what asks for a GPU
        # A script cannot remove files until its process ends: whoever started that removes the folder.
        folder = mkdtemp()
        reference = self.lay(Path(folder)).reference()
        assert reference.script is not None
        call = replace(reference.script, keeps_batch=self.keeps_batch)
        spec = TrialSpec(
            workload=replace(reference, script=call),
            batch_size=self.batch_size,
            probe=Probe.PREDICT,
            architecture=self.architecture,
        )
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):  # what the script says
            return trace_script(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of runs.

    Attributes:
        asked: by quantity, the median and the ninth decile of the errors, as shares, that are asked for.
        of_scripts: whether each run wants a process of its own.
    """

    name: str
    read: Callable[[Path], Sequence[Measured]]
    asked: Mapping[str, tuple[float, float]]
    of_scripts: bool = False


def by_rules(
    *, num_weights: int, num_trained: int, weight_bytes: int, tokens: int, hidden: int, num_layers: int
) -> dict[str, int]:
    """What a peak is by two rules that people go by.

    `accelerate estimate-memory`, "Training using Adam": four times the weights, whatever is trained.
    16 bytes for a trained parameter beside the weights, and 34 bytes a token, layer and hidden unit for what
    backward wants, attention scores left out (Korthikanti et al., 2022, "Reducing Activation Recomputation
    in Large Transformer Models").
    """
    return {
        "accelerate estimate-memory": 4 * weight_bytes * num_weights,
        "16 bytes a parameter, 34 an activation": weight_bytes * (num_weights - num_trained)
        + 16 * num_trained
        + 34 * tokens * hidden * num_layers,
    }


def _on_card(trace: Trace, architecture: str) -> StepOnCard:
    conditions = Conditions(
        plans=(offline_source(architecture, torch.__version__),),
        conv_algo="cudnn",
        architecture=architecture,
        allow_tf32=True,
        settings=_settings(trace),
    )
    return PeakCurve.through([trace]).on_card(trace.batch_size, conditions)


def _settings(trace: Trace) -> AllocatorSettings:
    """Settings of PyTorch's allocator that a script makes itself."""
    return AllocatorSettings.of_knob(trace.versions.get("own_allocator", "default"))


class Seen:
    """What a trace of one size says on a card.

    Args:
        usable_bytes: what PyTorch may reserve there; None where nothing is said of that.
    """

    def __init__(self, trace: Trace, architecture: str, usable_bytes: int | None = None) -> None:
        self.usable_bytes = usable_bytes
        self._on_card = _on_card(trace, architecture)
        self._trace = trace
        self._sizes = self._on_card.by_first_source.sizes(Level.LIKELY)
        self.replay = self._on_card.likely().replay

    def fits(self, usable_bytes: int | None) -> bool:
        """Whether it runs, with the cache emptied where nothing else is left."""
        return self._on_card.verdict(usable_bytes, Level.LIKELY) is not Verdict.OOM

    def reserved_within(self, limit_bytes: int) -> int:
        """What is reserved at most where no more than a limit can be."""
        return self._on_card.by_first_source.replay_within(limit_bytes).peak_reserved_bytes

    def reserved_on_its_card(self) -> int:
        """What is reserved at most where no more is usable than is said."""
        assert self.usable_bytes is not None
        return self.reserved_within(self.usable_bytes)

    def live_bytes(self, mark: str | None = None, *, emptied_at: str | None = None) -> int:
        """What is allocated at a mark, or at the end; the cache may be emptied before, at another."""
        end = None if mark is None else self._position(mark)
        return self._replayed(end, emptied_at=emptied_at).allocated_bytes

    def peak_since(self, mark: str) -> int:
        """The most that is allocated at once where a mark stands and after it."""
        return self._replayed(peak_since=mark).peak_allocated_bytes

    def reserved_after(self, emptied_at: str) -> int:
        """What is reserved at the end, where the cache was emptied at a mark."""
        return self._replayed(emptied_at=emptied_at).reserved_bytes

    def _position(self, mark: str) -> int | None:
        """None where the trace has no such mark: inference ends where backward would begin."""
        return next((each.position for each in self._trace.marks if each.name == mark), None)

    def _replayed(
        self, end: int | None = None, *, emptied_at: str | None = None, peak_since: str | None = None
    ) -> CachingAllocator:
        allocator, blocks = CachingAllocator(_settings(self._trace)), {}
        empty = None if emptied_at is None else self._position(emptied_at)
        counted = None if peak_since is None else self._position(peak_since)
        for position, event in enumerate(self._trace.events[:end]):
            if position == empty:
                allocator.empty_cache()
            if position == counted:
                allocator.peak_allocated_bytes = allocator.allocated_bytes
            if event < 0:
                if ~event in blocks:
                    allocator.free(blocks.pop(~event))
            elif self._sizes[event]:
                blocks[event] = allocator.malloc(self._sizes[event])
        if counted is not None and counted >= len(self._trace.events):  # nothing is allocated any more
            allocator.peak_allocated_bytes = allocator.allocated_bytes
        return allocator


class SeenOverTexts:
    """What a training over texts of unlike lengths says on a card.

    Args:
        traces: of its steps, each with all texts of one length.

    Attributes:
        reserved_bytes: of each order that is drawn, from the least to the most; None where it does not run.
    """

    def __init__(self, traces: Sequence[Trace], run: Run) -> None:
        assert run.lengths is not None
        passes = PassesOfLengths([(trace, likely_sizes(trace, run.architecture)) for trace in traces])
        reserved: list[int | None] = []
        for seed in range(NUM_ORDERS):
            order = batches(run.lengths.data, run.batch_size, seed=seed)
            try:
                reserved.append(
                    passes.reserved(order, accumulated=run.lengths.accumulated, limit_bytes=run.usable_bytes)
                )
            except AllocatorOutOfMemory:
                reserved.append(None)
        self.reserved_bytes = sorted(each for each in reserved if each is not None)
        self.fits = 2 * len(self.reserved_bytes) > len(reserved)

    def median_bytes(self) -> int:
        """Of the orders that run, half reserve no more."""
        return int(median(self.reserved_bytes))


def likely_sizes(trace: Trace, architecture: str) -> list[int]:
    return _on_card(trace, architecture).by_first_source.sizes(Level.LIKELY)


# A trace's steps are numbered from 1; in the loops of the tables the second one is like all that follow.
_SECOND = "step 2 forward"  # what the first one leaves are the workspaces of its products
QUANTITIES: dict[str, Quantity] = {
    "allocated peak": lambda seen: seen.replay.peak_allocated_bytes,
    "allocated peak of generate": lambda seen: seen.replay.peak_allocated_bytes,
    "reserved on its card": lambda seen: seen.reserved_on_its_card(),
    "allocated peak of a call": lambda seen: seen.peak_since("step 3 forward"),
    **dict.fromkeys(
        ("allocated peak of a kernel's call", "allocated peak of a compiled call"),
        lambda seen: seen.peak_since("step 3 forward"),
    ),
    "reserved peak": lambda seen: seen.replay.peak_reserved_bytes,
    "reserved after long steps": lambda seen: seen.reserved_after("step 2 input"),
    "allocated after a step": lambda seen: seen.live_bytes(),
    "allocated after the model": lambda seen: seen.live_bytes(_SECOND),
    "allocated after forward": lambda seen: seen.live_bytes("step 2 backward", emptied_at=_SECOND),
    "allocated after backward": lambda seen: seen.live_bytes("step 2 optimizer", emptied_at=_SECOND),
}
