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
        knobs: knob setting, such as `knobs.conv_algo`.
        peak_allocated_bytes, peak_reserved_bytes: live blocks and segments of PyTorch's allocator at
            their peaks, in bytes; None if measured on the CPU, which has no caching allocator.
        device_peak_bytes: on CUDA, reserved memory and context; on the CPU, the peak resident set.
        evidence: `predicted`, `measured`, `emulated` (on a larger card under a limit) or `measured-cpu`.
        interval: predicted interval; None if measured on the CPU.
        workspace_bytes: predicted range of the convolution workspaces; None if they have one size.
        step_seconds, samples_per_second: of measured steps; None if predicted. A step that accumulates
            more than two batches is measured with two.
        soak_steps: number of steps that it ran in a fresh process for verification; None if it was not
            verified, as for a prediction.
        grad_accumulation: number of batches in an optimizer step.
        parallel: kind of parallelism, such as `fsdp:8`; empty for a single process.
        samples_per_step: global batch: samples of an optimizer step, of all ranks and accumulated batches.
        predicted_step_seconds, predicted_samples_per_second: predictions of the same quantities;
            None if they are too uncertain to be stated.
        step_time_error: (predicted − measured) / measured step.
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
        largest_batch, first_failing_batch, reason: of its knob setting, see `FrontierEntry`.
        estimate: prediction for it, if it is not the best configuration.
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
        knobs: knob setting.
        largest_batch: largest batch that is known to fit; None if no tried batch fits.
        peak_reserved_bytes: reserved peak at the largest batch; None on the CPU.
        device_peak_bytes: on CUDA, reserved memory and context at the largest batch; on the CPU, the peak
            resident set.
        first_failing_batch: next larger batch, known to fail; None if the cap was reached. If
            the search was stopped, the smallest larger batch that failed, if any did.
        reason: why the next batch fails, with the evidence; or why that is unknown.
        evidence: evidence for the largest batch, see `Best.evidence`.
        largest_thrashing_batch: largest batch beyond `largest_batch` that would still run, with the
            allocator emptying its cache and retrying; None if there is none or it is unknown.
        largest_by_risk: for predictions, the largest batch at each `Risk`; None if it was measured or
            each size costs a trace.
        likely_still_runs: True if the largest batch at the likely risk would run with the smallest
            workspaces even if everything else takes as much as at the high end; None if not predicted.
        dominated_by: knob setting that fits as much and takes no longer for a sample, by measured rates or,
            without them, by predicted ones or the usual cost of its knobs; None on the Pareto front.
        is_settled: True if every batch between `largest_batch` and `first_failing_batch` is known.
        step_seconds, samples_per_second: of measured steps at the largest batch; None if predicted.
        predicted_bytes: likely predicted peak, if the largest batch was measured.
        prediction_error: (predicted − measured) / measured peak.
        parallel, samples_per_step, predicted_step_seconds, predicted_samples_per_second, step_time_error: of
            the largest batch, see `Best`.
        relative_sample_time: predicted time of a sample over that of the fastest knob setting, both
            at their largest batches; None if no time is predicted.
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
