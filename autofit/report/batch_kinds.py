"""What typical batches take and what the worst do, of a workload whose batches depend on the data."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.units import format_bytes
from workers.protocol import TYPICAL, WORST, Evidence


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
