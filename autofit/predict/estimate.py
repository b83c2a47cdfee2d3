"""The estimate of one configuration, and its JSON document `autofit.estimate/1`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

from autofit.explain.timing import GenerationTime, StepSeconds
from autofit.notebooks.shown import ShownInNotebooks
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

    Convolutions run one after the other, so only one workspace is alive at a time.
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
        optimizer_state: tensors that the optimizer keeps between steps, such as Adam's moments.
        activations: tensors that the forward pass and the loss allocated.
        inputs: the batch.
        workspace: memory that convolutions take besides their outputs while they run.
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
    """Memory alive at the allocated peak, from one operator at one source line in one module.

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
    """Tensor size that depends on data values, and was assumed for the prediction.

    Attributes:
        site: the user's line that makes the tensor, `file:line:function`.
        what: what has that size, in words.
        size: number of elements that was assumed, at the traced batch size.
        largest: most elements that are possible at that batch size, from which the high end is computed; None
            if unknown.
        moves_bytes: bytes by which the peak may be higher if all assumptions of the estimate are as wrong as
            possible.
        batch_size: the traced batch size; None in documents of earlier versions.
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
        source: what is uncertain, in words.
        low_bytes, likely_bytes, high_bytes: bounds of the reserved peak if only this source varies, and
            everything else has its likely value.
        modules: paths of the modules with the largest workspace; empty if the source is not workspaces.
    """

    source: str
    low_bytes: int
    likely_bytes: int
    high_bytes: int
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEstimate:
    """Predicted memory of a group of ranks that need equal memory.

    Attributes:
        rank: the first rank of the group.
        num_alike: number of ranks in the group.
        peak_allocated_bytes: allocated peak of each of these ranks.
        interval: reserved peak of each of these ranks.
        need: reserved peak on a card that is large enough, where it may exceed the card's memory; else None.
            See `Estimate`.
    """

    rank: int
    num_alike: int
    peak_allocated_bytes: int
    interval: Interval
    need: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """Allocated peak of a phase, such as forward pass or optimizer, over all traced steps.

    Attributes:
        name: name of the phase, see `autofit.explain.profile.Phase`.
        num_bytes: allocated peak of the phase.
    """

    name: str
    num_bytes: int


class PhasePeaks(Sequence[PhasePeak]):
    """Allocated peak of each phase of a step; computed only when it is first used.

    Args:
        find: computes the peaks.
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
class Estimate(ShownInNotebooks):
    """Predicted memory of one configuration on the GPU. All sizes are in bytes.

    Attributes:
        workload: the workload's name.
        batch_size: samples per batch; with several ranks, per rank.
        batch_source: where the batch size was found, such as in the script's data loader.
        num_batches: batches in an optimizer step of a script, of all ranks; None if knobs determine it.
        num_parts: batches that the script splits its batch size into; the script is called with `num_parts`
            times `batch_size`.
        knobs: the knob setting that was predicted: precision, optimizer and so on.
        mode: `train`, `infer` or `generate`.
        model_class: the name of the model's class; None where a script builds the model.
        num_parameters: elements of the model's parameters, without an adapter's; None where a script builds
            the model.
        inputs: shape of each input of one sample, where autofit makes the batches of a library's model.
        peak_allocated_bytes: allocated peak: live blocks of PyTorch's allocator at their most.
        peak_reserved_bytes: reserved peak: segments of PyTorch's allocator at their most; the likely value of
            `interval`.
        device_peak_bytes: memory that nvidia-smi (or amd-smi) would show for the process: reserved bytes and
            context.
        context_bytes: memory of the CUDA context, as assumed; with several ranks, including NCCL's.
        breakdown: what the allocated peak holds.
        interval: the reserved peak with what convolution workspaces may add, widened by the errors that
            predictions of such models had against real runs.
        evidence: `predicted`.
        device: the card that was assumed.
        calibration: the past errors of predictions by which the interval is widened; its `num_rows` is 0 if
            there are no real runs of such models.
        workspace_bytes: range of the largest scratch memory (workspace) of any convolution; None where it is
            certain.
        batch_kind: `typical` or `worst`, where the workload makes both; otherwise None.
        num_ranks: number of processes that train together; 1 for a single process.
        parallel: how the ranks share the work, such as `fsdp:8`, or `script:8` where their script decides it;
            empty for a single process.
        rank: the rank that the estimate is for.
        ranks: with `--rank all`, each predicted group of ranks that need equal memory; `rank` is in the group
            that needs the most.
        num_kinds_of_ranks: number of groups of ranks that need equal memory; 0 where one rank alone was
            predicted.
        communicators: number of ranks of each process group that exchanges data; NCCL's communicators for
            them are in `context_bytes`.
        convolves: whether the step has convolutions: without any, `knobs.conv_algo` changes nothing.
        workspace_source: where the workspaces of convolutions are from, in words; empty without convolutions.
        largest: the largest holders of memory at the allocated peak.
        architectures: the GPU architectures that the interval covers, the likely one first; for a named card
            only its own.
        trace_digest: identifies the trace that the estimate was made from.
        versions: the versions of autofit and PyTorch.
        assumptions: sizes that depend on values and were assumed; `--assume` changes them.
        unknowns: sources of uncertainty in the reserved peak, the one that may add the most bytes first.
        notes: remarks on how the estimate was made, in sentences.
        step_seconds: predicted time of a step; None where it is too uncertain.
        samples_per_second: likely samples per second; None as `step_seconds`. A step that accumulates more
            than two batches is predicted with two.
        step_time_note: sentence on what the step time is based on, or on why there is none.
        generation: predicted times of a text generation's tokens; None for other steps.
        phases: the allocated peak of each phase, in their order; empty where the trace has no phases.
        seen: the part of the run that was traced, which the prediction covers; None for a text generation.
        growth: source lines that keep more memory with each step, the one that keeps the most first.
        lengths: memory of a run whose batches differ in length; None where they do not.
        limit_bytes: most bytes that the allocator can reserve on the card; None where the card's memory is
            not known. The reserved peak, the device peak and `interval` are those within this limit. Where
            memory runs out, all other values are those of a complete run on a card that is large enough.
        likely_verdict: what happens at the likely peak on that card: `FITS`, `THRASH` (runs with retries of
            the allocator) or `OOM`.
        num_alloc_retries: how often the allocator releases its cached memory and retries, in the traced
            steps.
        need: reserved peak on a card that is large enough, where it may exceed `limit_bytes`; else None.
            Where memory runs out, and more than half of this peak would be free blocks that no request fits
            into, about the least memory that the step completes in.
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
    generation: GenerationTime | None = None
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
        """Interval of the reserved peak of a complete run.

        It is the one on the card or, if memory likely runs out there, the one on a card that is large enough.
        """
        return self.needed if self.runs_out else self.interval

    @property
    def whole_peak_bytes(self) -> int:
        """Likely reserved peak of a complete run in bytes, see `whole_interval`."""
        return self.whole_interval.likely_bytes

    @property
    def called_batch_size(self) -> int:
        """Batch size that a script is called with, if it splits its batch; otherwise `batch_size`."""
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
        """Samples per optimizer step, of all ranks and accumulated batches."""
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
