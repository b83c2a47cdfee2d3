"""The answer of a search, and its JSON document `autofit.tune/1`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Self

from autofit.hardware.budget import Budget
from autofit.predict.conv_plan import ConvPlan
from autofit.predict.estimate import Estimate, Interval, WorkspaceSpan
from autofit.search.choice import Knee
from autofit.search.pruning import PrunedSetting
from autofit.settings.goals import Objective, Risk
from autofit.settings.words import setting_names, varied_knobs
from autofit.tuning.plain import from_plain
from autofit.units import format_bytes
from workers.knobs import Knobs
from workers.protocol import Device, Evidence, TrialOutcome
from workers.setup import TYPICAL, WORST

TUNE_SCHEMA = "autofit.tune/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best configuration that fits: the largest, or where that was asked for the fastest.

    Attributes:
        peak_allocated_bytes, peak_reserved_bytes: None where the CPU, which has no caching
            allocator, was measured.
        device_peak_bytes: on CUDA reserved and context; on the CPU the peak resident set.
        interval: of the prediction; None where the CPU was measured.
        workspace_bytes: of the prediction, where convolution workspaces have more than one size.
        step_seconds, samples_per_second: of measured steps, which two batches make where more do in a
            training.
        soak_steps: so many steps it ran for in one fresh process, as its verification; None where it
            was not verified, such as a prediction.
        grad_accumulation: so many batches make an optimizer step.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierEntry:
    """One knob setting with its largest batch.

    Attributes:
        largest_batch: the largest size that is known to fit; None when none tried does.
        peak_reserved_bytes: at the largest batch (None on the CPU, see `device_peak_bytes`).
        first_failing_batch: the next larger size, known to fail; None where the cap was reached.
            Where the search was stopped, the smallest size beyond that failed, if any did.
        reason: why the next size fails, and how that is known; or why it is not known.
        is_settled: whether all between the two is known.
        step_seconds, samples_per_second: of measured steps at the largest batch.
        predicted_bytes: the likely peak that was predicted where the largest batch was measured, of
            what is held against the budget.
        prediction_error: its excess over the measured peak, as a share of that.
        largest_thrashing_batch: the largest size beyond that would still run, with the allocator
            releasing and asking again; None where there is none or it is not known.
        largest_by_risk: of a prediction, the largest batch at each `Risk`; None where it was measured
            or a size costs a trace.
        dominated_by: a setting that fits as much and takes no longer for a sample, by measured rates or
            else by what is known without them; None on the Pareto front.
        likely_still_runs: whether the largest batch at the likely risk would run with the smallest
            plans of its convolutions, should the rest take as much as the high end has it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAnswer:
    """The answer for one catalogue card of the class that `--gpu-mem` names."""

    gpu: str
    total_bytes: int
    largest_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """What a search found, with the evidence.

    Attributes:
        best: None when nothing fits.
        frontier: one entry per knob setting, in the order of the search space.
        pruned: the settings that were not searched to their end, because one of the frontier fits all that
            they could and is no slower.
        trials: the outcomes in the study, in their order.
        estimate: the prediction of the best (or, where nothing fits, of the smallest) size.
        cards: with `--gpu-mem`, the same question for the cards sold with so much memory.
        batch_kinds: what typical batches take and what the worst do, where the workload makes both.
        num_ranks: the answer is of each of so many ranks of `DistributedDataParallel`; 1 for none.
        conv_plan: the algorithm of every layer, where the best has one for each.
        notes: what to know beside the answer, one sentence each.
        risk: the level of the predicted peak that had to be within the budget.
        architectures: those that predictions span, the likely one first; of a named card its own.
        objective: what the best has most of.
        knee: the throughput knee of all that was measured; None where nothing was.
        stopped_by: the option whose limit ended the search before its end; None where none did.
        fingerprint: of all that decides the answer; equal fingerprints have equal answers.
        answered_seconds: when it was found; epoch.
        cached: whether it was found earlier, and nothing was run for it now.
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
    pruned: tuple[PrunedSetting, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    estimate: Estimate | None = None
    cards: tuple[CardAnswer, ...] = ()
    batch_kinds: BatchKinds | None = None
    num_ranks: int = 1
    conv_plan: ConvPlan | None = None
    notes: tuple[str, ...] = ()
    risk: Risk = Risk.SAFE
    architectures: tuple[str, ...] = ()
    objective: Objective = Objective.BATCH
    knee: Knee | None = None
    stopped_by: str | None = None
    answered_seconds: float = 0.0
    cached: bool = False

    @property
    def samples_per_step(self) -> int | None:
        """See `Knobs.samples_per_step`; with the best, None where nothing fits."""
        best = self.best
        return None if best is None else best.knobs.samples_per_step(best.batch_size, self.num_ranks)

    @property
    def setting_names(self) -> dict[Knobs, str]:
        """What each setting of the search is called, see `autofit.report.words`."""
        known = (*self.frontier, *self.pruned, *(() if self.best is None else (self.best,)))
        return setting_names(dict.fromkeys(each.knobs for each in known))

    @property
    def searched(self) -> tuple[str, ...]:
        """The knobs in which those settings differ."""
        return varied_knobs(self.setting_names)

    @property
    def is_of_product(self) -> bool:
        """Whether more than the convolution algorithm was searched."""
        return any(name != "conv_algo" for name in self.searched)

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
            "frontier": [dataclasses.asdict(entry) for entry in self.frontier],
            "pruned": [dataclasses.asdict(setting) for setting in self.pruned],
            "knee": None if self.knee is None else dataclasses.asdict(self.knee),
            "stopped_by": self.stopped_by,
            "estimate": None if self.estimate is None else self.estimate.to_dict(),
            "cards": [dataclasses.asdict(card) for card in self.cards],
            "batch_kinds": None if self.batch_kinds is None else dataclasses.asdict(self.batch_kinds),
            "num_ranks": self.num_ranks,
            "samples_per_step": self.samples_per_step,
            "conv_plan": None if self.conv_plan is None else self.conv_plan.to_dict(),
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
        return from_plain(cls, document)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


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
        peaks = f"{format_bytes(self.worst.peak_bytes)} against {format_bytes(self.typical.peak_bytes)}"
        typical, worst = _reach(self.typical), _reach(self.worst)
        advice = "" if self.tuned == WORST or self.has_same_answer else "; --worst-case tunes on those"
        return (
            f"{TYPICAL.capitalize()} batches {typical}; the worst need {peaks} at batch {self.batch_size}, "
            f"predicted, and {worst}{advice}."
        )

    @property
    def has_same_answer(self) -> bool:
        return self.typical.largest_batch == self.worst.largest_batch


def _reach(answer: KindAnswer) -> str:
    how = "" if answer.evidence is Evidence.PREDICTED else ", measured"
    if answer.largest_batch is None:
        return f"do not fit at all{how}"
    return f"fit to {answer.largest_batch}{how}"
