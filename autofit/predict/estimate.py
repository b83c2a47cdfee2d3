"""The estimate of one configuration, and its JSON document `autofit.estimate/1`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

from autofit.explain.timing import StepSeconds
from autofit.predict.confidence import Calibration
from autofit.predict.run_lengths import RunLengths
from autofit.predict.whole_run import LineGrowth, SeenPart
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Verdict
from autofit_workers.spec.setup import Parallel

ESTIMATE_SCHEMA = "autofit.estimate/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The reserved peak with 95 % confidence, in bytes.

    Attributes:
        low_bytes, high_bytes: the ends of the interval.
        likely_bytes: the likely peak within it.
    """

    low_bytes: int
    likely_bytes: int
    high_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceSpan:
    """The largest workspace of any one convolution call, in bytes: at least, likely, at most.

    Calls follow each other, so that no two of them are held at a time.
    """

    low: int
    likely: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Bytes alive at the allocated peak, by what they hold; they add up to that peak.

    Attributes:
        parameters: parameters and buffers.
        gradients: gradients of parameters, and the buckets in which ranks reduce them. Gradients of
            activations are short-lived and count as `other`.
        optimizer_state: what the optimizer keeps between steps, such as Adam's moments.
        activations: what forward pass and loss allocated.
        inputs: the batch.
        workspace: what convolutions use besides their outputs while they run.
        other: temporaries, and the unused part of blocks.
    """

    parameters: int
    gradients: int
    optimizer_state: int
    activations: int
    inputs: int
    workspace: int
    other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeTensor:
    """Memory alive at the allocated peak that one operator allocated at one line in one module.

    Attributes:
        module: path of the `nn.Module`; empty outside any.
        source: the user's line, `file:line:function`.
    """

    module: str
    operator: str
    source: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedSize:
    """Tensor size that depends on values and was therefore assumed for the prediction.

    Attributes:
        site: the user's line, `file:line:function`.
        what: the thing that has the size.
        size: elements that were assumed, at the traced batch size.
        largest: the most elements that it can have there, which the high end is of; None if nothing says.
        moves_bytes: by how much all the assumptions of the estimate together may move the peak.
        batch_size: the traced one; None in documents of earlier versions.
    """

    site: str
    what: str
    size: int
    largest: int | None
    moves_bytes: int
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Source of uncertainty in a predicted peak, with the peak's range due to that source alone.

    Attributes:
        source: what is not known, in the words that a reader is told.
        low_bytes, likely_bytes, high_bytes: the reserved peak, all else as is likely.
        modules: paths of the modules with the largest workspace; empty where the source is another one.
    """

    source: str
    low_bytes: int
    likely_bytes: int
    high_bytes: int
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEstimate:
    """Predicted memory of one group of alike ranks.

    Attributes:
        rank: the first of its kind.
        num_alike: the ranks of that kind.
        peak_allocated_bytes: live blocks at their peak.
        interval: the reserved peak.
        need: see `Estimate`.
    """

    rank: int
    num_alike: int
    peak_allocated_bytes: int
    interval: Interval
    need: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """The allocated peak of a phase, over all steps that were traced.

    Attributes:
        name: see `autofit.explain.profile.Phase`.
        num_bytes: live blocks at their peak.
    """

    name: str
    num_bytes: int


class PhasePeaks(Sequence[PhasePeak]):
    """Sequence of the phases' allocated peaks, computed at first use from all blocks of the step.

    Args:
        find: works out the peaks.
    """

    def __init__(self, find: Callable[[], tuple[PhasePeak, ...]]) -> None:
        self._find = find

    @cached_property
    def _found(self) -> tuple[PhasePeak, ...]:
        return self._find()

    @overload
    def __getitem__(self, index: int) -> PhasePeak: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PhasePeak, ...]: ...
    def __getitem__(self, index: int | slice) -> PhasePeak | tuple[PhasePeak, ...]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __eq__(self, other: object) -> bool:
        return self._found == (other._found if isinstance(other, PhasePeaks) else other)

    def __hash__(self) -> int:
        return hash(self._found)

    def __repr__(self) -> str:
        return repr(self._found)

    def __reduce__(self) -> tuple[type[tuple[PhasePeak, ...]], tuple[tuple[PhasePeak, ...]]]:
        return tuple, (self._found,)  # a copy keeps no trace alive


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicted memory of one configuration on the GPU. All sizes are in bytes.

    Attributes:
        workload: the workload's name.
        batch_size: samples a batch; with several ranks, of one rank.
        batch_source: what shows that size, a `BatchSource`.
        num_batches: batches of a script's optimizer step, of all ranks; None where knobs say it.
        num_parts: batches that the script splits its batch size into; the option is `num_parts` times
            `batch_size`.
        knobs: the setting that was predicted.
        mode: `train` or `infer`.
        model_class: the name of the model's class; None where a script builds it.
        num_parameters: elements of its parameters, without an adapter's; None where a script builds it.
        inputs: where autofit makes the batches of a library's model, the shape of each part of one sample.
        peak_allocated_bytes: live blocks at their peak.
        peak_reserved_bytes: segments of PyTorch's allocator at their peak; the likely value of `interval`.
        device_peak_bytes: what nvidia-smi (or amd-smi) would show of the process: reserved bytes and context.
        context_bytes: the CUDA context that was assumed; with several ranks, with NCCL.
        breakdown: what the allocated peak holds.
        interval: the reserved peak with what convolution workspaces may add, widened by the errors that
            predictions of such models had against real runs.
        evidence: `predicted`.
        device: the card that was assumed.
        calibration: the real runs that widen the interval; `num_rows` is 0 if there are none.
        workspace_bytes: the range of the convolution workspaces; None where they have one size.
        batch_kind: `typical` or `worst`, where the workload makes both; otherwise None.
        num_ranks: the processes that train together; 1 for one by itself.
        parallel: how they share the work, `fsdp:8`, or `script:8` as their script has it; empty for one by
            itself.
        rank: the one of them that the estimate is of.
        ranks: with `--rank all`, each kind of ranks that was predicted, of which `rank` needs the most.
        num_kinds_of_ranks: how many kinds there are; 0 where one rank alone was asked for.
        communicators: how many ranks each process group has that exchanges anything: with a communicator of
            NCCL's for each, in `context_bytes`.
        convolves: whether the step has convolutions: without any, `knobs.conv_algo` changes nothing.
        workspace_source: how the workspaces of convolutions are known; empty where there are none.
        largest: the largest holders of memory at the allocated peak.
        architectures: the architectures that the interval covers, the likely one first; for a named card
            its own.
        trace_digest: identifies the trace that the estimate was made from.
        versions: the versions of autofit and PyTorch.
        assumptions: the sizes in it that depend on values; `--assume` changes them.
        unknowns: the sources of the interval, the one that may add most first.
        notes: what else to know of how the estimate was made, in sentences.
        step_seconds: the predicted time of a step; None where it is not sure enough to be said.
        samples_per_second: the likely rate; None as `step_seconds`. A step that accumulates more than two
            batches is predicted with two.
        step_time_note: what the time rests on, or why none is said, in a sentence.
        phases: the allocated peak of each phase, in their order; empty where the trace has none.
        seen: which part of the run was traced, and is what is predicted; None of a generation.
        growth: the lines that keep more with each step, the most first.
        lengths: memory of a run whose batches differ in length; None where they do not.
        limit_bytes: the most that the allocator can reserve on the card; None where its memory is not known.
            The reserved and the device peak, and `interval`, are those on that card. Where memory runs out
            there, all else is that of a run to its end, on a card that suffices.
        likely_verdict: what happens at the likely peak on that card: `FITS`, `THRASH` or `OOM`.
        num_alloc_retries: how often the allocator gives back all that it keeps and asks again, in the steps
            that were traced.
        need: the reserved peak on a card that is large enough, where that may be more than this one has; None
            where it is not. Where memory runs out, and more than half of that would be free blocks that
            nothing fits into, about the least that it runs in.
    """

    workload: str
    batch_size: int
    knobs: Knobs
    mode: str
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_peak_bytes: int
    context_bytes: int
    breakdown: Breakdown
    interval: Interval
    evidence: Evidence
    device: Device
    calibration: Calibration
    model_class: str | None = None
    num_parameters: int | None = None
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    workspace_bytes: WorkspaceSpan | None = None
    batch_source: str = ""
    num_batches: int | None = None
    num_parts: int = 1
    batch_kind: str | None = None
    num_ranks: int = 1
    parallel: str = ""
    rank: int = 0
    ranks: tuple[RankEstimate, ...] = ()
    num_kinds_of_ranks: int = 0
    communicators: tuple[int, ...] = ()
    convolves: bool = True
    workspace_source: str = ""
    largest: tuple[LargeTensor, ...] = ()
    architectures: tuple[str, ...] = ()
    trace_digest: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    assumptions: tuple[AssumedSize, ...] = ()
    unknowns: tuple[Unknown, ...] = ()
    notes: tuple[str, ...] = ()
    step_seconds: StepSeconds | None = None
    samples_per_second: float | None = None
    step_time_note: str = ""
    phases: Sequence[PhasePeak] = ()
    seen: SeenPart | None = None
    growth: tuple[LineGrowth, ...] = ()
    lengths: RunLengths | None = None
    limit_bytes: int | None = None
    likely_verdict: Verdict | None = None
    num_alloc_retries: int = 0
    need: Interval | None = None

    @property
    def is_of_whole_run(self) -> bool:
        """Whether the estimate covers the whole run: no untraced part of it may need more memory."""
        seen = self.seen
        if seen is None or seen.steps == seen.run_steps:
            return seen is None or not seen.unseen_phases
        return not (seen.unseen_phases or self.growth or (seen.lengths and self.lengths is None))

    @property
    def needed(self) -> Interval:
        """Interval of the reserved peak on a card with enough memory."""
        return self.need or self.interval

    @property
    def runs_out(self) -> bool:
        """Whether memory likely runs out on the card."""
        return self.likely_verdict is Verdict.OOM

    @property
    def whole_interval(self) -> Interval:
        """Interval of a full run's reserved peak: on the card, or on a large enough one if it runs out."""
        return self.needed if self.runs_out else self.interval

    @property
    def whole_peak_bytes(self) -> int:
        """Likely reserved peak of a full run in bytes; see `whole_interval`."""
        return self.whole_interval.likely_bytes

    @property
    def called_batch_size(self) -> int:
        """Batch size that a script is called with; `batch_size` of any other workload."""
        return self.batch_size * self.num_parts

    @property
    def peak_phase(self) -> str:
        """Name of the phase that has the allocated peak; empty if the trace has no phases."""
        return max(self.phases, key=lambda phase: phase.num_bytes).name if self.phases else ""

    @property
    def architecture(self) -> str | None:
        """The likely architecture of the card; None if `architectures` is empty."""
        return next(iter(self.architectures), None)

    @property
    def samples_per_step(self) -> int:
        """Samples per optimizer step, from a script's `num_batches` or else `Knobs.samples_per_step`."""
        if self.num_batches is not None:
            return self.num_batches * self.batch_size
        return self.knobs.samples_per_step(self.batch_size, Parallel.named(self.parallel).num_batches)

    def to_dict(self) -> dict[str, Any]:
        """Estimate as a dict of plain data, ready to be written as its JSON document."""
        return {
            "schema": ESTIMATE_SCHEMA,
            **dataclasses.asdict(self),
            "phases": [dataclasses.asdict(phase) for phase in self.phases],
            "peak_phase": self.peak_phase,
            "samples_per_step": self.samples_per_step,
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)
