"""The answer of a search, and its JSON document `autofit.tune/1`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from autofit.explain.timing import StepSeconds
from autofit.hardware.budget import Budget
from autofit.predict.conv_plan import ConvPlan
from autofit.predict.estimate import AssumedSize, Estimate, Interval, Unknown, WorkspaceSpan
from autofit.questions.advice import Advice
from autofit.questions.late_failure import LengthsAnswer
from autofit.search.choice import Knee, RecommendedBy
from autofit.search.pruning import PrunedSetting
from autofit.settings.goals import Objective, Risk
from autofit.settings.words import in_words, setting_names, varied_knobs
from autofit.units import format_bytes
from workers.knobs import Knobs
from workers.parallel_kinds import DDP
from workers.plain import from_plain
from workers.protocol import Device, Evidence, TrialOutcome
from workers.setup import TYPICAL, WORST, Parallel

TUNE_SCHEMA = "autofit.tune/1"
TUNE_CARDS_SCHEMA = "autofit.tune-cards/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best configuration that fits: the largest batch, or with `objective="throughput"` the fastest.

    Attributes:
        batch_size: samples a batch; with several ranks, of one rank.
        knobs: the setting, such as `knobs.conv_algo`.
        peak_allocated_bytes, peak_reserved_bytes: live blocks and segments of PyTorch's allocator at
            their peaks, in bytes; None when measured on the CPU, which has no caching allocator.
        device_peak_bytes: on CUDA reserved memory and context; on the CPU the peak resident set.
        evidence: `predicted`, `measured`, `emulated` (on a larger card under a limit) or `measured-cpu`.
        interval: the predicted interval; None when measured on the CPU.
        workspace_bytes: the predicted range of the convolution workspaces; None where they have one size.
        step_seconds, samples_per_second: of measured steps; None when predicted. A step that accumulates
            more than two batches is measured with two.
        soak_steps: how many steps it ran for in a fresh process as its verification; None if it was not
            verified, as for a prediction.
        grad_accumulation: batches that make an optimizer step.
        parallel: how several processes train together, `fsdp:8`; empty for one by itself.
        samples_per_step: the global batch: samples of an optimizer step, of all ranks and all its batches.
        predicted_step_seconds, predicted_samples_per_second: what was predicted for it, in the same terms;
            None where that is not sure enough to be said.
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
    """The configuration that a practitioner would take, with its place on the frontier.

    Attributes:
        by: what decided that it is this one.
        largest_batch, first_failing_batch, reason: of its setting, see `FrontierEntry`.
        estimate: the prediction for it, where it is not the best one's.
    """

    by: RecommendedBy
    largest_batch: int | None
    first_failing_batch: int | None
    reason: str
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierEntry:
    """One knob setting with its largest batch.

    Attributes:
        knobs: the setting.
        largest_batch: the largest batch that is known to fit; None if none that was tried fits.
        peak_reserved_bytes: the reserved peak at the largest batch; None on the CPU.
        device_peak_bytes: on CUDA reserved memory and context at the largest batch; on the CPU the peak
            resident set.
        first_failing_batch: the next larger batch, known to fail; None where the cap was reached. Where
            the search was stopped, the smallest larger batch that failed, if any did.
        reason: why the next batch fails, and how that is known; or why it is not known.
        evidence: how the largest batch is known, see `Best.evidence`.
        largest_thrashing_batch: the largest batch beyond `largest_batch` that would still run, with the
            allocator emptying its cache and trying again; None if there is none or it is not known.
        largest_by_risk: for predictions, the largest batch at each `Risk`; None if it was measured or
            each size costs a trace.
        likely_still_runs: True if the largest batch at the likely risk would run with the smallest
            workspaces even if everything else takes as much as at the high end; None if not predicted.
        dominated_by: a setting that fits as much and takes no longer for a sample, by measured rates or,
            without them, by predicted ones or the usual cost of its knobs; None on the Pareto front.
        is_settled: True if every batch between `largest_batch` and `first_failing_batch` is known.
        step_seconds, samples_per_second: of measured steps at the largest batch; None when predicted.
        predicted_bytes: where the largest batch was measured, the likely peak that was predicted for it.
        prediction_error: (predicted − measured) / measured peak.
        parallel, samples_per_step, predicted_step_seconds, predicted_samples_per_second, step_time_error: of
            the largest batch, see `Best`.
        relative_sample_time: how many times as long a sample is predicted to take there as with the fastest
            of the settings at their largest batches; None where no time is predicted.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelAnswer:
    """What one way of training together allows, where several were compared.

    Attributes:
        parallel: how the ranks share the work, `fsdp:8`; `ddp:1` for a process by itself.
        num_ranks: the processes that train together.
        budget: of one rank; what NCCL holds depends on the ranks. None where it was refused.
        best: the best configuration; None when nothing fits.
        frontier: one entry for each knob setting, see `TuneResult.frontier`.
        study: the name of its study; empty where it was refused.
        refused: why the workload cannot be trained so, or why it was not tried; else empty.
    """

    parallel: str
    num_ranks: int
    budget: Budget | None = None
    best: Best | None = None
    frontier: tuple[FrontierEntry, ...] = ()
    study: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAnswer:
    """The answer for one card of the catalogue that is sold with the memory of `--gpu-mem`."""

    gpu: str
    total_bytes: int
    largest_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """What a search found, with the evidence. `to_json()` is the document `autofit.tune/1`.

    Attributes:
        workload: the workload's name.
        budget: the memory that was there, in bytes; `budget.usable_bytes` is what is left for PyTorch.
        device: the device that was measured or assumed.
        best: the best configuration that fits; None when nothing fits.
        recommended: the one that a practitioner would take, see `RecommendedBy`; None when nothing fits.
        frontier: one entry for each knob setting, in the order of the search space.
        trials: the outcomes in the study, in their order.
        wall_seconds: how long the search took.
        study: the name of the study.
        fingerprint: identifies all that decides the answer; equal fingerprints have equal answers.
        pruned: the settings whose search was cut short, because another one fits at least as much and is
            no slower.
        versions: the versions of autofit, PyTorch and others.
        estimate: the prediction for the best batch or, when nothing fits, for the smallest.
        cards: with `gpu_mem`, the answer for each card that is sold with this memory.
        lengths: with `--lengths`, what the lengths of the data mean for its batches.
        batch_kinds: how far typical and worst batches get, where the workload makes both.
        num_ranks: the processes that train together, of which the answer is for one; 1 for one by itself.
        parallel: how they share the work, `fsdp:8`; empty for one by itself.
        parallels: the ways of sharing it that were compared, in the order they were given; the answer is that
            of the one with the largest global batch. Empty where there was one alone.
        conv_plan: the algorithm of every layer, where `mixed` is the best.
        advice: what would make it fit, where nothing does and that was tried; otherwise None.
        notes: what else to know about the answer, one sentence each.
        risk: the level of the predicted peak that has to be within the budget.
        architectures: the architectures that predictions cover, the likely one first; for a named card
            its own.
        objective: what makes the best one the best: `batch` or `throughput`.
        knee: the throughput knee of all that was measured, or else of what is predicted; None without times.
        epoch_samples: samples of an epoch, where they were said.
        stopped_by: the option that ended the search early, such as `--max-trials`; None if none did.
        answered_seconds: when the answer was found, in seconds since the epoch.
        cached: True if it is an earlier answer, and nothing was run for it now.
    """

    workload: str
    budget: Budget
    device: Device
    best: Best | None
    frontier: tuple[FrontierEntry, ...]
    trials: tuple[TrialOutcome, ...]
    wall_seconds: float
    study: str
    fingerprint: str
    recommended: Recommended | None = None
    pruned: tuple[PrunedSetting, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    estimate: Estimate | None = None
    cards: tuple[CardAnswer, ...] = ()
    lengths: LengthsAnswer | None = None
    batch_kinds: BatchKinds | None = None
    num_ranks: int = 1
    parallel: str = ""
    parallels: tuple[ParallelAnswer, ...] = ()
    conv_plan: ConvPlan | None = None
    advice: Advice | None = None
    notes: tuple[str, ...] = ()
    risk: Risk = Risk.SAFE
    architectures: tuple[str, ...] = ()
    objective: Objective = Objective.BATCH
    knee: Knee | None = None
    epoch_samples: int | None = None
    stopped_by: str | None = None
    answered_seconds: float = 0.0
    cached: bool = False

    @property
    def chosen(self) -> Best | None:
        """What the answer's text is about: the recommended configuration, or the best one without any."""
        return self.recommended or self.best

    @property
    def estimate_of_chosen(self) -> Estimate | None:
        """The prediction for it, or for the smallest size where nothing fits."""
        own = None if self.recommended is None else self.recommended.estimate
        return own or self.estimate

    @property
    def samples_per_step(self) -> int | None:
        """See `Knobs.samples_per_step`; with the best, None where nothing fits."""
        best = self.best
        num_batches = Parallel.named(self.parallel).num_batches
        return None if best is None else best.knobs.samples_per_step(best.batch_size, num_batches)

    @property
    def setting_names(self) -> dict[Knobs, str]:
        """What each setting of the search is called, see `autofit.settings.words`."""
        known = (*self.frontier, *self.pruned, *(() if self.best is None else (self.best,)))
        return setting_names(dict.fromkeys(each.knobs for each in known), convolves=self.convolves)

    @property
    def searched(self) -> tuple[str, ...]:
        """The knobs in which those settings differ."""
        return varied_knobs(self.setting_names)

    def size_in_words(self, knobs: Knobs) -> str:
        """The size of a sample that was asked for or found, where the setting's name does not say it."""
        size = knobs.seq_len
        return "" if size is None or "seq_len" in self.searched else in_words("seq_len", size)

    @property
    def convolves(self) -> bool:
        """Whether the step has convolutions, as far as it was predicted."""
        return self.estimate is None or self.estimate.convolves

    @property
    def is_of_product(self) -> bool:
        """Whether more than the convolution algorithm was searched."""
        return any(name != "conv_algo" for name in self.searched)

    @property
    def assumptions(self) -> tuple[AssumedSize, ...]:
        """The sizes that depend on values, of the best."""
        return () if self.estimate is None else self.estimate.assumptions

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """What the interval of the best is made of."""
        return () if self.estimate is None else self.estimate.unknowns

    @property
    def step_seconds(self) -> StepSeconds | None:
        """The predicted time of a step of the best."""
        return None if self.estimate is None else self.estimate.step_seconds

    @property
    def epoch_seconds(self) -> float | None:
        """Of an epoch with what is recommended, measured or else predicted."""
        chosen = self.chosen
        if chosen is None or self.epoch_samples is None:
            return None
        rate = chosen.samples_per_second or chosen.predicted_samples_per_second
        return self.epoch_samples / rate if rate else None

    def to_dict(self) -> dict[str, Any]:
        """The document's content, ready for `json`."""
        budget = {**dataclasses.asdict(self.budget), "usable_bytes": self.budget.usable_bytes}
        return {
            "schema": TUNE_SCHEMA,
            "workload": self.workload,
            "risk": self.risk,
            "objective": self.objective,
            "budget": budget,
            "device": dataclasses.asdict(self.device),
            "architectures": list(self.architectures),
            "best": None if self.best is None else dataclasses.asdict(self.best),
            "recommended": None if self.recommended is None else _recommended(self.recommended),
            "frontier": [dataclasses.asdict(entry) for entry in self.frontier],
            "pruned": [dataclasses.asdict(setting) for setting in self.pruned],
            "knee": None if self.knee is None else dataclasses.asdict(self.knee),
            "epoch_samples": self.epoch_samples,
            "epoch_seconds": self.epoch_seconds,
            "stopped_by": self.stopped_by,
            "estimate": None if self.estimate is None else self.estimate.to_dict(),
            "assumptions": [dataclasses.asdict(each) for each in self.assumptions],
            "unknowns": [dataclasses.asdict(each) for each in self.unknowns],
            "step_seconds": None if self.step_seconds is None else dataclasses.asdict(self.step_seconds),
            "samples_per_second": None if self.estimate is None else self.estimate.samples_per_second,
            "cards": [dataclasses.asdict(card) for card in self.cards],
            "batch_kinds": None if self.batch_kinds is None else dataclasses.asdict(self.batch_kinds),
            "lengths": None if self.lengths is None else dataclasses.asdict(self.lengths),
            "num_ranks": self.num_ranks,
            "parallel": self.parallel,
            "parallels": [dataclasses.asdict(each) for each in self.parallels],
            "samples_per_step": self.samples_per_step,
            "conv_plan": None if self.conv_plan is None else self.conv_plan.to_dict(),
            "advice": None if self.advice is None else dataclasses.asdict(self.advice),
            "notes": list(self.notes),
            "num_trials": len(self.trials),
            "trials": [dataclasses.asdict(trial) for trial in self.trials],
            "wall_seconds": self.wall_seconds,
            "study": self.study,
            "versions": self.versions,
            "fingerprint": self.fingerprint,
            "answered_seconds": self.answered_seconds,
            "cached": self.cached,
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """Reads what `to_dict` wrote, be it by way of JSON.

        Raises:
            ValueError: the document is of another schema, or lacks something.
        """
        if document.get("schema") != TUNE_SCHEMA:
            raise ValueError(f"expected a document of schema {TUNE_SCHEMA}, got {document.get('schema')!r}")
        result = from_plain(cls, document)
        if result.num_ranks > 1 and not result.parallel:  # of 0.1, which knew no other kind
            result = dataclasses.replace(result, parallel=f"{DDP}:{result.num_ranks}")
        Parallel.named(result.parallel)  # which refuses what is none
        return result

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def _recommended(recommended: Recommended) -> dict[str, Any]:
    estimate = None if recommended.estimate is None else recommended.estimate.to_dict()
    return {**dataclasses.asdict(recommended), "estimate": estimate}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindAnswer:
    """The answer for one kind of batch.

    Attributes:
        largest_batch: the largest size that fits; None where none does.
        evidence: of that size.
        peak_bytes: predicted peak at `BatchKinds.batch_size`, of what is held against the budget.
    """

    largest_batch: int | None
    evidence: Evidence
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKinds:
    """Both kinds under one budget and one knob setting.

    Attributes:
        tuned: `typical` or `worst`, the kind that the search was asked for.
        batch_size: the size that both peaks are of: the answer, or the smallest where nothing fits.
    """

    tuned: str
    batch_size: int
    typical: KindAnswer
    worst: KindAnswer

    def in_words(self) -> str:
        """The difference in one sentence."""
        peaks = f"{format_bytes(self.worst.peak_bytes)} instead of {format_bytes(self.typical.peak_bytes)}"
        typical, worst = _reach(self.typical), _reach(self.worst)
        advice = "" if self.tuned == WORST or self.has_same_answer else "; --worst-case tunes on them"
        return (
            f"{TYPICAL.capitalize()} batches {typical}; the worst batches {worst}, as they are predicted to "
            f"need {peaks} at batch {self.batch_size}{advice}."
        )

    @property
    def has_same_answer(self) -> bool:
        return self.typical.largest_batch == self.worst.largest_batch


def _reach(answer: KindAnswer) -> str:
    how = "" if answer.evidence is Evidence.PREDICTED else ", measured"
    if answer.largest_batch is None:
        return f"do not fit at all{how}"
    return f"fit up to batch {answer.largest_batch}{how}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardResults:
    """The same question, answered for several cards; `to_json()` is the document `autofit.tune-cards/1`.

    Attributes:
        answers: in the order of the cards.
        unanswered: by the key of a card of which nothing is predicted, why, and what can be done.
    """

    answers: tuple[TuneResult, ...]
    unanswered: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        document = {
            "schema": TUNE_CARDS_SCHEMA,
            "answers": [answer.to_dict() for answer in self.answers],
            "unanswered": [{"gpu": gpu, "reason": reason} for gpu, reason in self.unanswered.items()],
        }
        return json.dumps(document, indent=2)
