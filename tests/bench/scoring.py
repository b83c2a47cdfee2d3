"""Scores predictions against measurements; nothing here knows where either comes from."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autofit.hardware.budget import DEFAULT_MARGIN
from tests.bench.predictions import Prediction
from tests.bench.tables.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A row with its prediction.

    Attributes:
        constant_bytes: what measurements of the table hold beside the allocator's.
    """

    row: Row
    prediction: Prediction
    constant_bytes: int = 0

    @property
    def failed(self) -> bool:
        return self.prediction.failure is not None

    @property
    def has_error(self) -> bool:
        """Whether there is a number on both sides."""
        return not self.failed and self.row.measured_bytes is not None

    @property
    def error(self) -> float:
        """The likely prediction's, as a share of the measurement; below 0 it was too low."""
        return self.error_of(self.prediction.likely_bytes)

    def error_of(self, predicted_bytes: int) -> float:
        assert self.row.measured_bytes is not None
        return self.as_measured(predicted_bytes) / self.row.measured_bytes - 1

    def as_measured(self, predicted_bytes: int) -> int:
        """What the measurement would say of a peak: without what it left out, with what it adds."""
        return predicted_bytes - self.prediction.before_bytes + self.constant_bytes

    @property
    def real_bytes(self) -> int:
        """The allocator's peak, by the measurement."""
        assert self.row.measured_bytes is not None
        return self.row.measured_bytes + self.prediction.before_bytes - self.constant_bytes

    @property
    def error_above_constant(self) -> float | None:
        """The same of the peak above the constant, which else would hide a part of it; None of nothing."""
        return self.prediction.likely_bytes / self.real_bytes - 1 if self.real_bytes > 0 else None

    @property
    def is_unsafe(self) -> bool:
        """Whether a card of which the safe end fills the budget is too small, or what did not run "fits".

        The budget leaves the margin free, so a run may take that too before it fails.
        """
        if self.row.measured_bytes is not None:
            return self.error_of(int(self.prediction.safe_bytes / (1 - DEFAULT_MARGIN))) < 0
        if self.prediction.safe_batch_size is not None:
            assert self.row.failed_batch_size is not None
            return self.prediction.safe_batch_size >= self.row.failed_batch_size
        return self._says_too_much("high")

    @property
    def is_unsafe_at_likely(self) -> bool:
        if self.row.measured_bytes is not None:
            return self.error < 0
        return self._says_too_much("likely")

    def _says_too_much(self, level: str) -> bool:
        too_large = self.row.ran is False and self.prediction.runs[level]
        next_runs = self.prediction.next_runs
        return too_large or (bool(next_runs) and next_runs[level])

    @property
    def given_away(self) -> float | None:
        """The share of the memory that the high end leaves unused, or of the batch, of a bracket.

        Of a bracket it is known to its lower end: what lies above that counts as nothing given away.
        """
        if self.row.measured_bytes is not None:
            return max(self.error_of(self.prediction.safe_bytes), 0.0)
        if self.prediction.safe_batch_size is not None:
            return max(1 - self.prediction.safe_batch_size / self.row.batch_size, 0.0)
        return None

    @property
    def is_labelled_right(self) -> bool:
        """Whether the likely prediction says what ran, and of a bracket what did not."""
        return self.prediction.runs["likely"] == self.row.ran and not self.prediction.next_runs.get("likely")


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which a share of the values lies, between two of them on the line through both."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def with_constants(scored: Sequence[Scored]) -> list[Scored]:
    """Rows whose constant is the one by which all other families are off least, each by its own peak.

    A constant that a family had a part in would be judged by rows that it was made from. With a
    single family there is no other, and it is taken from that one. What a process uses of cuDNN is
    loaded beside the allocator, so that networks that use the same have a constant of their own.
    """
    measured = [s for s in scored if s.has_error]
    kinds = {(s.row.family, s.prediction.cudnn) for s in scored}
    constants = {kind: _constant_of(_fitted_on(measured, *kind)) for kind in kinds}
    return [
        dataclasses.replace(s, constant_bytes=constants[s.row.family, s.prediction.cudnn]) for s in scored
    ]


def _fitted_on(measured: Sequence[Scored], family: str, cudnn: tuple[str, ...]) -> Sequence[Scored]:
    """The rows that a family's constant is fitted on: of other families that use the same of cuDNN.

    Where these are a single one, which may be off as a whole, they are those that use cuDNN for
    anything, or for nothing, as the family does; where there are none, all.
    """
    others = [s for s in measured if s.row.family != family]
    same = [s for s in others or measured if s.prediction.cudnn == cudnn]
    if len({s.row.family for s in same}) > 1 or (same and not others):
        return same
    return [s for s in others if bool(s.prediction.cudnn) == bool(cudnn)] or others or measured


def _constant_of(measured: Iterable[Scored]) -> int:
    """The constant with the least mean of relative errors: a median that weighs each by 1/peak."""
    left_over = sorted(
        (
            s.row.measured_bytes + s.prediction.before_bytes - s.prediction.likely_bytes,
            1 / s.row.measured_bytes,
        )
        for s in measured
        if s.row.measured_bytes is not None
    )
    half = sum(weight for _, weight in left_over) / 2
    reached = itertools.accumulate(weight for _, weight in left_over)
    return next((size for (size, _), weight in zip(left_over, reached, strict=True) if weight >= half), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures of a class of rows; the shares are None where no row says anything.

    Attributes:
        num_rows, num_failed: all rows, and those without a prediction.
        median, ninth_decile, largest, bias: of the error of the likely prediction; the first three
            of its absolute value, the last its mean.
        above_median, above_ninth_decile: of the peak above the constant.
        unsafe, unsafe_at_likely: share of the rows whose high end (likely end) says too little.
        given_away: mean of what the high end gives away, none where it is unsafe.
        labels_right, oom_labels_right: share of the labels that are right; of those that say OOM.
        seconds: mean of one estimate.
    """

    name: str
    num_rows: int
    num_failed: int
    num_errors: int
    median: float | None = None
    ninth_decile: float | None = None
    largest: float | None = None
    bias: float | None = None
    above_median: float | None = None
    above_ninth_decile: float | None = None
    unsafe: float | None = None
    unsafe_at_likely: float | None = None
    given_away: float | None = None
    labels_right: float | None = None
    oom_labels_right: float | None = None
    seconds: float | None = None


def summarize(name: str, scored: Sequence[Scored]) -> Summary:
    """The figures of these rows. A failed label counts as wrong."""
    predicted = [s for s in scored if not s.failed]
    compared = [s for s in scored if s.has_error]
    labels = [s for s in scored if s.row.ran is not None]
    ooms = [s for s in labels if not s.row.ran]
    errors = [s.error for s in compared]
    sizes = [abs(error) for error in errors]
    above = [abs(error) for s in compared if (error := s.error_above_constant) is not None]
    return Summary(
        name=name,
        num_rows=len(scored),
        num_failed=len(scored) - len(predicted),
        num_errors=len(compared),
        median=_of(sizes, statistics.median),
        ninth_decile=_of(sizes, lambda values: quantile(values, 0.9)),
        largest=_of(sizes, max),
        bias=_of(errors, statistics.fmean),
        above_median=_of(above, statistics.median),
        above_ninth_decile=_of(above, lambda values: quantile(values, 0.9)),
        unsafe=_share(predicted, lambda s: s.is_unsafe),
        unsafe_at_likely=_share(predicted, lambda s: s.is_unsafe_at_likely),
        given_away=_of([g for s in predicted if (g := s.given_away) is not None], statistics.fmean),
        labels_right=_share(labels, lambda s: not s.failed and s.is_labelled_right),
        oom_labels_right=_share(ooms, lambda s: not s.failed and s.is_labelled_right),
        seconds=_of([s.prediction.seconds for s in predicted], statistics.fmean),
    )


def summarize_other(name: str, predictor: str, scored: Sequence[Scored]) -> Summary:
    """The same figures of another predictor's numbers; what it did not answer is a failure."""
    rows = [s for s in scored if predictor in s.row.others]
    answered = [s for s in rows if s.row.others[predictor] is not None]
    return dataclasses.replace(
        summarize(name, [as_other(s, predictor) for s in answered]),
        num_rows=len(rows),
        num_failed=len(rows) - len(answered),
        seconds=None,
    )


def as_other(scored: Scored, predictor: str) -> Scored:
    """A row with another predictor's answer in the place of ours: one number, no allocator, no constant.

    Raises:
        KeyError: the table has no answer of that predictor for this row.
    """
    said_bytes = scored.row.others[predictor]
    assert said_bytes is not None
    runs = said_bytes <= scored.row.limit_bytes
    prediction = Prediction(
        low_bytes=said_bytes,
        likely_bytes=said_bytes,
        high_bytes=said_bytes,
        safe_bytes=said_bytes,
        runs={"low": runs, "likely": runs, "high": runs},
    )
    return Scored(row=scored.row, prediction=prediction)


def _of(values: Sequence[float], figure: Callable[[Sequence[float]], float]) -> float | None:
    return figure(values) if values else None


def _share(scored: Sequence[Scored], holds: Callable[[Scored], bool]) -> float | None:
    return sum(holds(s) for s in scored) / len(scored) if scored else None
