"""Data classes for answers compared with a search's own: other parallelism, other cards, other batches."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.hardware.budget import Budget
from autofit.tuning.found import Best, FrontierEntry
from autofit.units import format_bytes
from autofit_workers.spec.protocol import Evidence
from autofit_workers.spec.setup import TYPICAL, WORST


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelAnswer:
    """Answer of a search for one kind of parallelism, such as `fsdp:8`, among several compared.

    Attributes:
        parallel: kind of parallelism, such as `fsdp:8`; `ddp:1` for a single process.
        num_ranks: number of processes that train together.
        budget: memory budget of one rank, from which NCCL's memory is taken. None if `refused` is set.
        best: best configuration; None if nothing fits.
        frontier: one entry for each knob setting (precision, optimizer, …), with its largest batch.
        study: name of the study, the stored record of its trials; empty if `refused` is set.
        refused: why the workload cannot be trained with this kind of parallelism, or why that was not tried;
            else empty.
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
    """Largest batch on one card of the catalogue that is sold with the memory size of `--gpu-mem`."""

    gpu: str
    total_bytes: int
    largest_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindAnswer:
    """Largest batch and predicted peak for one kind of batches, typical or worst.

    Attributes:
        largest_batch: largest batch that fits; None if none does.
        evidence: how the largest batch was found: `predicted`, or a kind of measurement.
        peak_bytes: predicted peak at the batch size `BatchKinds.batch_size`, of the memory that counts
            against the budget: on a GPU reserved memory.
    """

    largest_batch: int | None
    evidence: Evidence
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKinds:
    """Largest batches and peaks for typical and for worst batches, under one budget and one knob setting.

    Attributes:
        tuned: `typical` or `worst`, the kind that was searched.
        batch_size: batch size at which the peaks of both kinds are given: the answer of the search, or the
            smallest size if nothing fits.
    """

    tuned: str
    batch_size: int
    typical: KindAnswer
    worst: KindAnswer

    def in_words(self) -> str:
        """Sentence that compares typical with worst batches: the largest size of each, and their peaks."""
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
