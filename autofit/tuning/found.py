"""Configurations that a search found: the best, the recommended one, and each knob setting's largest."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.explain.timing import StepSeconds
from autofit.predict.estimate import Estimate, Interval, WorkspaceSpan
from autofit.search.choice import RecommendedBy
from autofit.settings.goals import Risk
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Best configuration that fits: the largest batch, or the fastest with `objective="throughput"`.

    Attributes:
        batch_size: samples a batch; with several ranks, of one rank.
        knobs: knob setting: precision, optimizer, convolution algorithm and so on.
        peak_allocated_bytes, peak_reserved_bytes: live blocks and segments of PyTorch's allocator at
            their peaks, in bytes; None if measured on the CPU, which has no caching allocator.
        device_peak_bytes: on CUDA, reserved memory and context; on the CPU, the peak resident set.
        evidence: `predicted`, `measured`, `emulated` (on a larger card under a limit) or `measured-cpu`.
        interval: predicted interval; None if measured on the CPU.
        workspace_bytes: predicted range of the scratch memory of convolutions; None if it is known exactly.
        step_seconds, samples_per_second: of measured steps; None if predicted. A step that accumulates
            more than two batches is measured with two.
        soak_steps: number of steps of a longer run that verified it, in a fresh process; None if there was no
            such run, as for a prediction.
        grad_accumulation: number of batches in an optimizer step.
        parallel: kind of parallelism, such as `fsdp:8`; empty for a single process.
        samples_per_step: global batch: samples of an optimizer step, of all ranks and accumulated batches.
        predicted_step_seconds, predicted_samples_per_second: predictions of the same quantities;
            None if they are too uncertain to be stated.
        step_time_error: relative error of the predicted step time: (predicted − measured) / measured; None
            unless there are both.
    """

    batch_size: int
    knobs: Knobs
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    device_peak_bytes: int | None
    evidence: Evidence
    interval: Interval | None = None
    workspace_bytes: WorkspaceSpan | None = None
    step_seconds: float | None = None
    samples_per_second: float | None = None
    soak_steps: int | None = None
    grad_accumulation: int = 1
    parallel: str = ""
    samples_per_step: int | None = None
    predicted_step_seconds: StepSeconds | None = None
    predicted_samples_per_second: float | None = None
    step_time_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended(Best):
    """Recommended configuration, the reason for recommending it, and the largest batch of its knob setting.

    Attributes:
        by: reason for recommending this configuration.
        largest_batch: largest batch that fits with the same knob setting.
        first_failing_batch: next larger batch, known to fail; None if none is known.
        reason: why no larger batch fits.
        estimate: prediction for the recommended configuration; None if it is the best one, whose prediction
            is `TuneResult.estimate`.
    """

    by: RecommendedBy
    largest_batch: int | None
    first_failing_batch: int | None
    reason: str
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierEntry:
    """Row of a search's frontier: one knob setting (precision, optimizer, …) with its largest batch.

    Attributes:
        knobs: knob setting: a value for each knob.
        largest_batch: largest batch that is known to fit; None if no tried batch fits.
        peak_reserved_bytes: reserved peak at the largest batch; None on the CPU.
        device_peak_bytes: on CUDA, reserved memory and context at the largest batch; on the CPU, the peak
            resident set.
        first_failing_batch: next larger batch, known to fail; None if the largest batch that the search
            considers fits. If the search was stopped early, the smallest larger batch that failed, if any
            did.
        reason: why the next batch fails, with the evidence; or why that is unknown.
        evidence: how the largest batch was found, see `Best.evidence`.
        largest_thrashing_batch: largest batch beyond `largest_batch` that would still run, with the
            allocator emptying its cache and retrying; None if there is none or it is unknown.
        largest_by_risk: for predictions, the largest batch at each `Risk`, which says whether the likely
            peak, the high end or the worst case has to fit; None if the batch was measured, or each size
            costs a trace.
        likely_still_runs: whether the largest batch by the likely peak would run even if tensors take as much
            as at the high end of the prediction, with convolutions falling back to their smallest scratch
            memory; None if not predicted.
        dominated_by: another knob setting that fits as large a batch and takes no longer for a sample, by
            measured, else predicted speed, else by what its knobs usually cost; None if there is no such
            setting (the entry is on the Pareto front).
        is_settled: True if `largest_batch` is final: the search left no batch untried between it and
            `first_failing_batch`.
        step_seconds, samples_per_second: of measured steps at the largest batch; None if predicted.
        predicted_bytes: likely predicted peak, if the largest batch was measured.
        prediction_error: relative error of the predicted peak: (predicted − measured) / measured; None unless
            there are both.
        parallel, samples_per_step, predicted_step_seconds, predicted_samples_per_second, step_time_error: of
            the largest batch, see `Best`.
        relative_sample_time: predicted time of a sample at the largest batch, divided by that of the fastest
            knob setting at its own; None if no time is predicted.
    """

    knobs: Knobs
    largest_batch: int | None
    peak_reserved_bytes: int | None
    device_peak_bytes: int | None
    first_failing_batch: int | None
    reason: str
    evidence: Evidence
    largest_thrashing_batch: int | None = None
    largest_by_risk: dict[Risk, int | None] | None = None
    likely_still_runs: bool | None = None
    dominated_by: Knobs | None = None
    is_settled: bool = True
    step_seconds: float | None = None
    samples_per_second: float | None = None
    predicted_bytes: int | None = None
    prediction_error: float | None = None
    parallel: str = ""
    samples_per_step: int | None = None
    predicted_step_seconds: StepSeconds | None = None
    predicted_samples_per_second: float | None = None
    step_time_error: float | None = None
    relative_sample_time: float | None = None
