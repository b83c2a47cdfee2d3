"""Result of a search, and its JSON document `autofit.tune/1`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.explain.timing import StepSeconds
from autofit.hardware.budget import Budget
from autofit.notebooks.shown import ShownInNotebooks
from autofit.predict.convolutions.plan import ConvPlan
from autofit.predict.estimate import AssumedSize, Estimate, Unknown
from autofit.questions.advice import Advice
from autofit.questions.late_failure import LengthsAnswer
from autofit.search.choice import Knee
from autofit.search.pruning import PrunedSetting
from autofit.settings.goals import Objective, Risk
from autofit.settings.words import in_words, setting_names, varied_knobs
from autofit.tuning.compared import BatchKinds, CardAnswer, ParallelAnswer
from autofit.tuning.found import Best, FrontierEntry, Recommended
from autofit.tuning.schema import TUNE_SCHEMA
from autofit.written.setting import Setting
from autofit.written.writing import Wish, Written, format_named, write_setting
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.parallel_kinds import DDP
from autofit_workers.spec.plain import from_plain
from autofit_workers.spec.protocol import Device, TrialOutcome
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.setup import TRAIN, Parallel

TUNE_CARDS_SCHEMA = "autofit.tune-cards/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult(ShownInNotebooks):
    """Result of a search, with its evidence; `to_json()` is the document `autofit.tune/1`.

    Attributes:
        workload: name of the workload.
        budget: memory of the device, in bytes; `budget.usable_bytes` is the part left for PyTorch.
        device: device that was measured or assumed.
        best: best configuration that fits; None if nothing fits.
        recommended: configuration that a practitioner would take, see `RecommendedBy`; None if nothing fits.
        frontier: one entry for each knob setting (precision, optimizer, …) with its largest batch, in the
            order of the search space.
        trials: results of all trials, each one run or prediction of a configuration, in their order.
        wall_seconds: seconds that the search took.
        study: name of the study, the stored record of the trials, with which the search can be continued.
        fingerprint: digest of everything that decides the answer; equal fingerprints have equal answers.
        pruned: knob settings whose search was cut short, because another setting fits at least as large a
            batch and is no slower.
        versions: versions of autofit, PyTorch and others.
        estimate: prediction for the best batch or, if nothing fits, for the smallest.
        cards: with `gpu_mem`, the answer for each card that is sold with this memory.
        lengths: with `--lengths`, the batches that fit with the sample lengths of the data.
        batch_kinds: largest batch for typical and for worst-case batches, if the workload makes both.
        num_ranks: number of processes that train together, of which the answer is for one; 1 for a single
            process.
        parallel: kind of parallelism of the ranks, such as `fsdp:8`; empty for a single process.
        parallels: kinds of parallelism that were compared, in the order they were given; the answer is that
            of the one with the largest global batch. Empty if only one was asked for.
        conv_plan: convolution algorithm of every layer, if `mixed` is that of the best configuration; else
            None.
        advice: changes with which the smallest batch would fit, if no batch fits and changes were tried; else
            None.
        notes: further sentences about the answer.
        risk: which value of a predicted peak has to be within the budget: the likely one, the high end of its
            interval, or the worst case.
        architectures: GPU architectures that predictions cover, the likely one first; for a named card only
            its own.
        objective: quantity that the best configuration maximizes: `batch` or `throughput`.
        knee: throughput knee (smallest batch with nearly the best rate), as measured or else predicted; None
            without times.
        epoch_samples: samples of an epoch, if the user gave them.
        stopped_by: option that ended the search early, such as `--max-trials`; None if none did.
        answered_seconds: time when the answer was found, in seconds of the epoch.
        cached: True if it is a stored answer of an earlier search, so nothing was run.
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
        """Configuration that the text of the result describes: the recommended one, or else the best one."""
        return self.recommended or self.best

    @property
    def estimate_of_chosen(self) -> Estimate | None:
        """Prediction for the chosen configuration, or for the smallest batch size if nothing fits."""
        own = None if self.recommended is None else self.recommended.estimate
        return own or self.estimate

    @property
    def detailed(self) -> tuple[Knobs, int] | None:
        """Knob setting and batch size that details such as memory by category are about; None without any.

        The chosen configuration, or that of `estimate` if nothing fits. The batch size is the one that a
        script is called with.
        """
        if self.chosen is not None:
            return self.chosen.knobs, self.chosen.batch_size
        return None if self.estimate is None else (self.estimate.knobs, self.estimate.called_batch_size)

    @property
    def samples_per_step(self) -> int | None:
        """Samples of an optimizer step of all ranks, with the best configuration; None if nothing fits."""
        best = self.best
        num_batches = Parallel.named(self.parallel).num_batches
        if best is None:
            return None
        return best.samples_per_step or best.knobs.samples_per_step(best.batch_size, num_batches)

    @property
    def setting_names(self) -> dict[Knobs, str]:
        """Display name of each knob setting of the search, see `autofit.settings.words`."""
        known = (*self.frontier, *self.pruned, *(() if self.best is None else (self.best,)))
        return setting_names(dict.fromkeys(each.knobs for each in known), convolves=self.convolves)

    def setting_name(self, knobs: Knobs) -> str:
        """Display name of a knob setting in this search.

        For a setting that the search did not try, it is the name of the convolution algorithm alone.
        """
        return self.setting_names.get(knobs, knobs.conv_algo)

    @property
    def searched(self) -> tuple[str, ...]:
        """Names of the knobs in which the knob settings of the search differ."""
        return varied_knobs(self.setting_names)

    def size_in_words(self, knobs: Knobs) -> str:
        """Sample size of a knob setting in words; empty if its display name has the size, or none was set."""
        size = knobs.seq_len
        return "" if size is None or "seq_len" in self.searched else in_words("seq_len", size)

    @property
    def convolves(self) -> bool:
        """Whether the step has convolutions; True if the step was not predicted."""
        return self.estimate is None or self.estimate.convolves

    @property
    def is_of_product(self) -> bool:
        """Whether the search varied other knobs than the convolution algorithm."""
        return any(name != "conv_algo" for name in self.searched)

    @property
    def assumptions(self) -> tuple[AssumedSize, ...]:
        """Tensor sizes that depend on data values and were assumed in the best configuration's prediction."""
        return () if self.estimate is None else self.estimate.assumptions

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """Sources of uncertainty in the predicted interval of the best configuration."""
        return () if self.estimate is None else self.estimate.unknowns

    @property
    def step_seconds(self) -> StepSeconds | None:
        """Predicted time of a step of the best configuration."""
        return None if self.estimate is None else self.estimate.step_seconds

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of an epoch with the chosen configuration, measured or else predicted."""
        chosen = self.chosen
        if chosen is None or self.epoch_samples is None:
            return None
        rate = chosen.samples_per_second or chosen.predicted_samples_per_second
        return self.epoch_samples / rate if rate else None

    @property
    def setting(self) -> Setting | None:
        """The chosen configuration, as it is written into other tools' files; None if nothing fits."""
        chosen = self.chosen
        if chosen is None:
            return None
        return Setting(
            batch_size=chosen.batch_size,
            knobs=chosen.knobs,
            accumulation=chosen.grad_accumulation,
            parallel=Parallel.named(self.parallel),
            device_kind=self.device.kind,
            torch_release=self.versions.get("torch_followed"),
            trains=self.estimate is None or self.estimate.mode in (None, TRAIN),
        )

    def write(self, format: str, file: str | os.PathLike[str]) -> Written:  # noqa: A002 - as `--write` has it
        """Writes the chosen configuration into the file of a trainer or a launcher, as `--write` does.

        A file that exists keeps its other keys, their order and its comments.

        Args:
            format: name of the format, such as `transformers-json`; a wrong one is told all names.
            file: path of the file.

        Returns:
            The file, how the tool is given it, and notes on what the tool has no key for.

        Raises:
            UsageError: there is no such format, nothing fits, or the file is broken or another tool's.
        """
        wish = Wish(format_named(format), Path(file))
        if self.setting is None:
            raise UsageError(f"nothing fits, so there is no setting to write to {file}")
        (written,) = write_setting(self.setting, (wish,))
        return written

    def to_dict(self) -> dict[str, Any]:
        """Result as a dictionary of JSON's types: the content of the document `autofit.tune/1`."""
        budget = {**dataclasses.asdict(self.budget), "usable_bytes": self.budget.usable_bytes}
        return {
            "schema": TUNE_SCHEMA,
            "workload": self.workload,
            "model_class": None if self.estimate is None else self.estimate.model_class,
            "num_parameters": None if self.estimate is None else self.estimate.num_parameters,
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
            "batch_source": None if self.estimate is None else self.estimate.batch_source,
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
        """Builds a result from the output of `to_dict`, or from that output read back from JSON.

        Raises:
            ValueError: the document has another schema, or lacks a field.
        """
        if document.get("schema") != TUNE_SCHEMA:
            raise ValueError(f"expected a document of schema {TUNE_SCHEMA}, got {document.get('schema')!r}")
        result = from_plain(cls, document)
        if result.num_ranks > 1 and not result.parallel:  # written by 0.1, which knew no other kind
            result = dataclasses.replace(result, parallel=f"{DDP}:{result.num_ranks}")
        Parallel.named(result.parallel)  # raises ValueError for an unknown kind
        return result

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def _recommended(recommended: Recommended) -> dict[str, Any]:
    estimate = None if recommended.estimate is None else recommended.estimate.to_dict()
    return {**dataclasses.asdict(recommended), "estimate": estimate}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardResults:
    """Results of one search on several cards; `to_json()` is the document `autofit.tune-cards/1`.

    Attributes:
        answers: results in the order of the cards.
        unanswered: for each card without a prediction, by its key, the reason, and what can be done.
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
