"""Checks whether one configuration fits on one device; its JSON document is `autofit.check/1`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from autofit.errors import ExitCode
from autofit.events import EventSink, ignore
from autofit.explain.timing import GenerationTime, StepSeconds
from autofit.hardware import gpus
from autofit.hardware.budget import Budget
from autofit.predict.confidence import Calibration
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Interval, RankEstimate, WorkspaceSpan
from autofit.predict.predictor import Predictor
from autofit.predict.run_lengths import RunLengths
from autofit.predict.whole_run import LineGrowth, SeenPart, fills
from autofit.questions.advice import Advice
from autofit.questions.advising import advice_on, nothing_to_measure_on
from autofit.settings.goals import Risk
from autofit.settings.target import Target, among_ranks_of_script, resolve_target
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Verdict
from autofit_workers.spec.pythons import StrEnum

CHECK_SCHEMA = "autofit.check/1"


class Answer(StrEnum):
    """Verdict of a check: the configuration fits, does not fit, or it is unsure.

    `FITS`: the high end of the prediction is within the budget, without a retry of the allocator.
    `DOES_NOT_FIT`: even the low end runs out of memory, with everything that the allocator can release; or
    memory that grows with each step fills the budget before the run ends.
    `UNSURE`: anything between, such as a step that runs only if the allocator empties its cache and retries.
    """

    FITS = "fits"
    DOES_NOT_FIT = "does-not-fit"
    UNSURE = "unsure"

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of `autofit check` for the verdict."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Answer.FITS: ExitCode.FOUND,
    Answer.DOES_NOT_FIT: ExitCode.NOTHING_FITS,
    Answer.UNSURE: ExitCode.UNSURE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of `check` for one configuration; `to_json()` is the document `autofit.check/1`.

    Attributes:
        workload: name of the workload.
        mode: `train` or `infer`.
        batch_size: samples a batch; with several ranks, of one rank.
        knobs: knob setting of the prediction.
        verdict: `fits` (the high end of the interval is within the budget), `does-not-fit` (even the low
            end runs out of memory, or memory that grows with each step fills the budget before the run ends)
            or `unsure`.
        budget: memory of the card and its parts, in bytes; `budget.usable_bytes` is the part left for
            PyTorch.
        interval: predicted reserved peak on the card, in bytes.
        need: reserved peak on a card that is large enough, where it may exceed this card's memory; else None.
        limit_bytes: most bytes that the allocator can reserve on the card.
        num_alloc_retries: how often the allocator releases its cached memory and retries in the traced steps.
        device_peak_bytes: memory that nvidia-smi (or amd-smi) would likely show: likely reserved peak and
            context.
        device: the card.
        evidence: `predicted`.
        likely_verdict: verdict at the likely peak: `FITS`, `THRASH` (runs with retries of the allocator) or
            `OOM`.
        calibration: earlier errors of predictions against real runs, by which the interval is widened;
            `num_rows` is 0 if there were no such runs.
        workspace_bytes: range of the convolution workspaces; None if they have one size.
        architectures: GPU architectures that the interval covers, the likely one first; for a named card only
            its own.
        batch_kind: `typical` or `worst` if the workload makes both; else None.
        num_ranks: number of processes that train together, of which one was predicted; 1 for a single
            process.
        parallel: kind of parallelism of the ranks, such as `fsdp:8`; empty for a single process.
        rank: number of the rank that was predicted.
        ranks: with `--rank all`, an estimate for each group of ranks that need equal memory; `rank` is in the
            group that needs the most.
        model_class: name of the model's class; None if a script builds the model.
        num_parameters: elements of the model's parameters, without those of an adapter; None for a script's
            model.
        num_kinds_of_ranks: number of groups of ranks that each need equal memory; 0 if only one rank was
            asked for.
        convolves: whether the step has convolutions; without any, `knobs.conv_algo` has no effect.
        step_seconds, samples_per_second: predicted time of a step, and likely samples per second; None where
            they are too uncertain.
        step_time_note: sentence on what the step time is based on, or on why there is none.
        generation: predicted times of a text generation's tokens; None for other steps.
        epoch_samples: samples of an epoch, if the user gave them.
        advice: changes that may make the configuration fit; None if it fits, if memory grows with each step
            until it is full, or if a script decides the settings.
        versions: versions of autofit and PyTorch.
        seen: part of the run that was traced, which the prediction covers.
        growth: source lines that keep more memory with each step of the run; `full_step` is the step at which
            the budget is full.
        lengths: memory of a run whose batches differ in length; None where they do not.
    """

    workload: str
    mode: str
    batch_size: int
    knobs: Knobs
    verdict: Answer
    budget: Budget
    interval: Interval
    device_peak_bytes: int
    device: Device
    evidence: Evidence
    likely_verdict: Verdict
    calibration: Calibration
    workspace_bytes: WorkspaceSpan | None = None
    architectures: tuple[str, ...] = ()
    batch_kind: str | None = None
    num_ranks: int = 1
    parallel: str = ""
    rank: int = 0
    ranks: tuple[RankEstimate, ...] = ()
    model_class: str | None = None
    num_parameters: int | None = None
    num_kinds_of_ranks: int = 0
    convolves: bool = True
    step_seconds: StepSeconds | None = None
    samples_per_second: float | None = None
    step_time_note: str = ""
    generation: GenerationTime | None = None
    epoch_samples: int | None = None
    advice: Advice | None = None
    need: Interval | None = None
    limit_bytes: int | None = None
    num_alloc_retries: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    seen: SeenPart | None = None
    growth: tuple[LineGrowth, ...] = ()
    lengths: RunLengths | None = None

    @property
    def would_thrash(self) -> bool:
        """True if the configuration likely runs only with the allocator emptying its cache and retrying."""
        return self.likely_verdict is Verdict.THRASH

    @property
    def epoch_seconds(self) -> float | None:
        """Likely duration of an epoch in seconds; None if its samples or the step time are unknown."""
        if self.epoch_samples is None or self.samples_per_second is None:
            return None
        return self.epoch_samples / self.samples_per_second

    def to_dict(self) -> dict[str, Any]:
        """Result as a dictionary of JSON's types: the content of the document `autofit.check/1`."""
        document = {"schema": CHECK_SCHEMA, **dataclasses.asdict(self)}
        document["would_thrash"] = self.would_thrash
        document["epoch_seconds"] = self.epoch_seconds
        document["budget"]["usable_bytes"] = self.budget.usable_bytes
        return document

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def check_curve(curve: PredictedCurve, batch_size: int, budget: Budget, device: Device) -> CheckResult:
    """Check result of one batch size: its predicted peak, compared with a budget.

    Args:
        curve: predicted peaks of the configuration over the batch size, on the card. Its risk does not
            matter, as a check uses the whole interval.
        budget: memory of the card, and the part that PyTorch's allocator may reserve.
        device: device whose memory the budget is for.
    """
    estimate = curve(batch_size)
    usable_bytes = budget.usable_bytes
    growth = curve.growth(batch_size, usable_bytes)
    if fills(growth):
        answer = Answer.DOES_NOT_FIT
    elif curve.at_risk(Risk.SAFE).verdict(batch_size, usable_bytes) is Verdict.FITS:
        answer = Answer.FITS
    elif curve.cannot_run(batch_size, budget.most_usable_bytes):
        answer = Answer.DOES_NOT_FIT
    else:
        answer = Answer.UNSURE
    return CheckResult(
        workload=estimate.workload,
        mode=estimate.mode,
        batch_size=batch_size,
        knobs=estimate.knobs,
        verdict=answer,
        budget=budget,
        interval=estimate.interval,
        device_peak_bytes=estimate.device_peak_bytes,
        device=device,
        evidence=estimate.evidence,
        likely_verdict=(
            Verdict.OOM if fills(growth) else curve.at_risk(Risk.LIKELY).verdict(batch_size, usable_bytes)
        ),
        calibration=estimate.calibration,
        workspace_bytes=estimate.workspace_bytes,
        architectures=estimate.architectures,
        batch_kind=estimate.batch_kind,
        num_ranks=estimate.num_ranks,
        parallel=estimate.parallel,
        rank=estimate.rank,
        ranks=estimate.ranks,
        model_class=estimate.model_class,
        num_parameters=estimate.num_parameters,
        num_kinds_of_ranks=estimate.num_kinds_of_ranks,
        convolves=estimate.convolves,
        step_seconds=estimate.step_seconds,
        samples_per_second=estimate.samples_per_second,
        step_time_note=estimate.step_time_note,
        generation=estimate.generation,
        need=estimate.need,
        limit_bytes=estimate.limit_bytes,
        num_alloc_retries=estimate.num_alloc_retries,
        versions=estimate.versions,
        seen=estimate.seen,
        growth=growth,
        lengths=estimate.lengths,
    )


def run_check(
    settings: TuneSettings, predictor: Predictor, batch_size: int, *, emit: EventSink = ignore
) -> CheckResult:
    """Predicts the peak of the settings' configuration and compares it with the budget.

    Args:
        settings: card, knobs and budget; they name a single configuration.
        emit: called with a progress event for each change that is tried, if the configuration does not fit.

    Raises:
        UsageError: no card is named, and this machine has none.
        WorkloadFailedError: the workload fails, or cannot be predicted.
    """
    target, curve = checked_curve(settings, predictor, batch_size)
    result = check_curve(curve, batch_size, target.budget, target.device)
    result = dataclasses.replace(result, epoch_samples=settings.epoch_samples)
    if result.verdict is Answer.FITS or settings.script is not None or fills(result.growth):
        return result
    knobs = settings.configuration("a check")
    advice = advice_on(settings, predictor, knobs, batch_size, target, risk=Risk.SAFE, emit=emit)
    return dataclasses.replace(result, advice=advice)


def checked_curve(
    settings: TuneSettings, predictor: Predictor, batch_size: int
) -> tuple[Target, PredictedCurve]:
    """Card with its budget, and the predicted peaks there, which a check compares; raises as `run_check`."""
    target = resolve_target(settings, local_gpus=gpus.local_gpus, reachable=nothing_to_measure_on)
    curve = predictor.curve_at(settings.configuration("a check"), target.card, batch_size)
    return among_ranks_of_script(target, predictor.traces.first), curve
