"""Predictions for `--rank all`: the estimates of the rank that needs the most memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from autofit.predict.curve import PredictedCurve
from autofit.predict.tracing.traces import Traces
from autofit_workers.spec.trace import AlikeRanks

MOST_KINDS = 8  # most kinds of ranks that are traced; each takes as long as tracing a single rank


def traced_kinds(kinds: Sequence[AlikeRanks]) -> tuple[AlikeRanks, ...]:
    """Groups of ranks that are to be traced, one rank of each, as its ranks need equal memory.

    All groups are traced if there are at most `MOST_KINDS`, else evenly spread ones with the first and the
    last.
    """
    if len(kinds) <= MOST_KINDS:
        return tuple(kinds)
    return tuple(kinds[number * (len(kinds) - 1) // (MOST_KINDS - 1)] for number in range(MOST_KINDS))


class _WithTraces(Protocol):
    @property
    def traces(self) -> Traces:
        """Traces on which the predictor of one rank rests."""
        ...


P = TypeVar("P", bound=_WithTraces)


class AllRanks(Generic[P]):
    """Predictors of the ranks of a workload that may differ in their memory, each made on demand and kept.

    Args:
        num_ranks: number of all ranks.
        predictor_of: makes the predictor of a rank.

    Attributes:
        first: the predictor of rank 0.
    """

    def __init__(self, num_ranks: int, predictor_of: Callable[[int], P]) -> None:
        self._num_ranks = num_ranks
        self._predictor_of = predictor_of
        self.first = predictor_of(0)
        self._made = {0: self.first}

    def curve(self, curve_of: Callable[[P], PredictedCurve]) -> PredictedCurve:
        """Peak curve (memory over the batch size) of the rank that needs the most at each batch size.

        Args:
            curve_of: takes the predictor of a rank, and returns the rank's curve.
        """
        first = curve_of(self.first)
        kinds = self.first.traces.first.alike_ranks or (AlikeRanks(first=0, num_ranks=self._num_ranks),)
        curves = {
            kind: curve_of(self._of(kind.first)) if kind.first else first for kind in traced_kinds(kinds)
        }
        return PredictedCurve.of_ranks(curves, num_kinds=len(kinds))

    @property
    def made(self) -> tuple[P, ...]:
        """Predictors made so far, rank 0's first."""
        return tuple(self._made.values())

    def _of(self, rank: int) -> P:
        if rank not in self._made:
            self._made[rank] = self._predictor_of(rank)
        return self._made[rank]
