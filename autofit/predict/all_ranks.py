"""Predictions for `--rank all`: the estimates of the rank that needs the most memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, Self, TypeVar

from autofit.explain.profile import Profile
from autofit.hardware.card import Card
from autofit.predict.convolutions.plan import ConvPlan
from autofit.predict.curve import PredictedCurve
from autofit.predict.estimate import Estimate, RankEstimate
from autofit.predict.times.step_times import StepTime
from autofit.predict.traces import Traces
from autofit.predict.whole_run import LineGrowth
from autofit.settings.goals import Risk
from autofit_workers.replay.curve.mixed_convolutions import Candidate
from autofit_workers.replay.curve.peak_estimate import PeakEstimate
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialOutcome, Verdict
from autofit_workers.spec.setup import Parallel
from autofit_workers.spec.trace import AlikeRanks, BatchCount
from autofit_workers.spec.work import Convolution

MOST_KINDS = 8  # of ranks that are traced: each costs as much as one rank by itself
_WORST_LAST = (Verdict.FITS, Verdict.THRASH, Verdict.OOM)


def traced_kinds(kinds: Sequence[AlikeRanks]) -> tuple[AlikeRanks, ...]:
    """Groups of alike ranks to trace: all up to `MOST_KINDS`, else the first, the last, some between."""
    if len(kinds) <= MOST_KINDS:
        return tuple(kinds)
    return tuple(kinds[number * (len(kinds) - 1) // (MOST_KINDS - 1)] for number in range(MOST_KINDS))


class _WithTraces(Protocol):
    @property
    def traces(self) -> Traces:
        """Traces that the predictor of one rank works from."""
        ...


P = TypeVar("P", bound=_WithTraces)


class AllRanks(Generic[P]):
    """Predictors of ranks that differ in their memory, each made on demand and kept.

    Args:
        num_ranks: the ranks of all kinds together.
        predictor_of: makes the predictor of a rank.

    Attributes:
        first: the predictor of rank 0.
    """

    def __init__(self, num_ranks: int, predictor_of: Callable[[int], P]) -> None:
        self._num_ranks = num_ranks
        self._predictor_of = predictor_of
        self.first = predictor_of(0)
        self._made = {0: self.first}

    def curve(self, curve_of: Callable[[P], PredictedCurve]) -> WorstOfRanks:
        """Peak curve that at each batch size is the curve of the rank that needs the most memory.

        Args:
            curve_of: asks a rank's predictor for the rank's curve.
        """
        first = curve_of(self.first)
        kinds = self.first.traces.first.alike_ranks or (AlikeRanks(first=0, num_ranks=self._num_ranks),)
        curves = {
            kind: curve_of(self._of(kind.first)) if kind.first else first for kind in traced_kinds(kinds)
        }
        return WorstOfRanks(curves, num_kinds=len(kinds))

    @property
    def made(self) -> tuple[P, ...]:
        """Predictors made so far, rank 0's first."""
        return tuple(self._made.values())

    def _of(self, rank: int) -> P:
        if rank not in self._made:
            self._made[rank] = self._predictor_of(rank)
        return self._made[rank]


class WorstOfRanks(PredictedCurve):
    """Peak curve that at each batch size is the curve of the rank that needs the most memory.

    Args:
        curves: the curve of one rank of each kind that was traced.
        num_kinds: how many kinds there are.
    """

    def __init__(self, curves: Mapping[AlikeRanks, PredictedCurve], *, num_kinds: int) -> None:
        self._curves = dict(curves)
        self._num_kinds = num_kinds
        self._first = next(iter(self._curves.values()))
        self.risk = self._first.risk

    def unlimited(self, batch_size: int) -> Estimate:
        """Estimate of the rank that needs the most memory, without a limit; `ranks` has all traced kinds."""
        return self._worst_of({kind: curve.unlimited(batch_size) for kind, curve in self._curves.items()})

    def within(self, batch_size: int, limit_bytes: int) -> Estimate:
        return self._worst_of(
            {kind: curve.within(batch_size, limit_bytes) for kind, curve in self._curves.items()}
        )

    def _worst_of(self, estimates: Mapping[AlikeRanks, Estimate]) -> Estimate:
        worst = max(estimates.values(), key=lambda each: (each.needed.high_bytes, each.needed.likely_bytes))
        ranks = tuple(
            RankEstimate(
                rank=kind.first,
                num_alike=kind.num_ranks,
                peak_allocated_bytes=each.peak_allocated_bytes,
                interval=each.interval,
                need=each.need,
            )
            for kind, each in estimates.items()
        )
        return dataclasses.replace(worst, ranks=ranks, num_kinds_of_ranks=self._num_kinds)

    @property
    def needs_traces(self) -> bool:
        return any(curve.needs_traces for curve in self._curves.values())

    @property
    def knobs(self) -> Knobs:
        return self._first.knobs

    @property
    def card(self) -> Card:
        return self._first.card

    @property
    def trace_identity(self) -> str:
        return self._first.trace_identity

    @property
    def mode(self) -> str:
        return self._first.mode

    @property
    def parallel(self) -> Parallel:
        return self._first.parallel

    @property
    def batch_count(self) -> BatchCount:
        return self._first.batch_count

    @property
    def why_untimed(self) -> str | None:
        return self._first.why_untimed

    def step_time(self, batch_size: int, budget_bytes: int | None = None) -> StepTime | None:
        """Step time of the slowest rank, which the others wait for."""
        times = [curve.step_time(batch_size, budget_bytes) for curve in self._curves.values()]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            return None
        return max(known, key=lambda time: time.likely_seconds)

    def on(self, card: Card) -> Self:
        return self._each(lambda curve: curve.on(card))

    def at_risk(self, risk: Risk) -> Self:
        return self._each(lambda curve: curve.at_risk(risk))

    def growth(self, batch_size: int, usable_bytes: int) -> tuple[LineGrowth, ...]:
        return self._worst(batch_size).growth(batch_size, usable_bytes)

    def spans(self, batch_size: int) -> PeakEstimate:
        return self._worst(batch_size).spans(batch_size)

    def why_unpredictable_on(self, card: Card, batch_size: int) -> str | None:
        whys = (curve.why_unpredictable_on(card, batch_size) for curve in self._curves.values())
        return next((why for why in whys if why is not None), None)

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        highest_bytes = 0
        for curve in self._curves.values():
            peak_bytes = curve.peak_reserved_bytes(batch_size, stop_above_bytes=stop_above_bytes)
            highest_bytes = max(highest_bytes, peak_bytes)
            if stop_above_bytes is not None and highest_bytes > stop_above_bytes:
                break
        return highest_bytes

    def lower_bound_bytes(self, batch_size: int) -> int:
        return max(curve.lower_bound_bytes(batch_size) for curve in self._curves.values())

    def verdict(self, batch_size: int, budget_bytes: int) -> Verdict:
        verdicts = (curve.verdict(batch_size, budget_bytes) for curve in self._curves.values())
        return max(verdicts, key=_WORST_LAST.index)

    def accepted(self, sizes: Sequence[int]) -> Sequence[int]:
        return min((curve.accepted(sizes) for curve in self._curves.values()), key=len)

    def why_refused(self, batch_size: int) -> str | None:
        whys = (curve.why_refused(batch_size) for curve in self._curves.values())
        return next((why for why in whys if why is not None), None)

    def cannot_run(self, batch_size: int, budget_bytes: int) -> bool:
        return any(curve.cannot_run(batch_size, budget_bytes) for curve in self._curves.values())

    def runs_with_smallest_plans(self, batch_size: int, budget_bytes: int) -> bool:
        return all(
            curve.runs_with_smallest_plans(batch_size, budget_bytes) for curve in self._curves.values()
        )

    def profile(self, batch_size: int) -> Profile:
        return self._worst(batch_size).profile(batch_size)

    def outcome(self, batch_size: int, budget_bytes: int) -> TrialOutcome:
        return self._worst(batch_size).outcome(batch_size, budget_bytes)

    def conv_plan(self, batch_size: int, budget_bytes: int) -> ConvPlan | None:
        return self._worst(batch_size).conv_plan(batch_size, budget_bytes)

    def conv_cost(self, batch_size: int, budget_bytes: int | None = None) -> float | None:
        return self._worst(batch_size).conv_cost(batch_size, budget_bytes)

    def convolution_options(
        self, batch_size: int, names: Sequence[str]
    ) -> dict[Convolution, list[Candidate]]:
        return self._worst(batch_size).convolution_options(batch_size, names)

    def convolution_modules(self, batch_size: int) -> dict[Convolution, tuple[str, ...]]:
        return self._worst(batch_size).convolution_modules(batch_size)

    def _worst(self, batch_size: int) -> PredictedCurve:
        return max(self._curves.values(), key=lambda curve: curve.peak_reserved_bytes(batch_size))

    def _each(self, change: Callable[[PredictedCurve], PredictedCurve]) -> Self:
        changed = {kind: change(curve) for kind, curve in self._curves.items()}
        return type(self)(changed, num_kinds=self._num_kinds)
