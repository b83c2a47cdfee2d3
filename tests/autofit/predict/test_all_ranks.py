"""`--rank all`: the answer is of the rank that needs the most, at each batch size."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autofit.answers.words.phrases import rank_peaks
from autofit.hardware.card import Card
from autofit.predict.all_ranks import MOST_KINDS, traced_kinds
from autofit.predict.predictor import Predictor
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.spec.trace import AlikeRanks, Trace

NATIVE = Knobs(conv_algo="native")
KINDS = (AlikeRanks(first=0, num_ranks=1), AlikeRanks(first=1, num_ranks=2), AlikeRanks(first=3, num_ranks=1))
ALL = Setup(parallel=Parallel.parse("fsdp:4"), rank=None)


@pytest.fixture
def of_ranks(workload: WorkloadRef, worker: Any, make_trace: Any) -> Predictor:
    """Ranks of which the second has the largest step."""

    def run(spec: TrialSpec) -> TrialOutcome:
        assert spec.setup.rank is not None
        assert spec.with_alike_ranks is (spec.setup.rank == 0)  # which takes as long as there are ranks
        trace = make_trace(spec.batch_size, num_extra={0: 0, 1: 4, 3: 2}[spec.setup.rank])
        named: Trace = dataclasses.replace(
            trace, num_ranks=4, parallel="fsdp:4", rank=spec.setup.rank, alike_ranks=KINDS
        )
        return dataclasses.replace(worker(spec), trace_json=named.to_json(), verdict=Verdict.FITS)

    return Predictor(workload, run, setup=ALL)


def test_the_estimate_is_of_the_rank_that_needs_the_most(of_ranks: Predictor, card: Card) -> None:
    estimate = of_ranks.estimate(NATIVE, card, 8)
    assert (estimate.rank, estimate.num_kinds_of_ranks) == (1, 3)
    assert [(each.rank, each.num_alike) for each in estimate.ranks] == [(0, 1), (1, 2), (3, 1)]
    assert estimate.interval == max((each.interval for each in estimate.ranks), key=lambda i: i.high_bytes)
    (sentence,) = rank_peaks(estimate)
    assert sentence.startswith("rank 1 of 4 needs the most, ")
    assert "; rank 0 " in sentence
    assert "; rank 3 " in sentence


def test_a_curve_is_at_every_size_the_largest_of_its_ranks(of_ranks: Predictor, card: Card) -> None:
    curve = of_ranks.curve(NATIVE, card)
    peaks = {each.rank: each for each in curve(32).ranks}
    assert curve(32).interval == peaks[1].interval
    budget_bytes = peaks[1].interval.high_bytes - 1
    assert curve.verdict(32, budget_bytes) is not Verdict.FITS
    assert curve.peak_reserved_bytes(32) == peaks[1].interval.high_bytes
    assert of_ranks.confirm(NATIVE, card, 16)


def test_so_many_kinds_of_ranks_are_traced_and_no_more() -> None:
    kinds = [AlikeRanks(first=rank, num_ranks=1) for rank in range(64)]
    traced = [kind.first for kind in traced_kinds(kinds)]
    assert len(traced) == MOST_KINDS
    assert (traced[0], traced[-1]) == (0, 63)
    assert traced_kinds(kinds[:3]) == tuple(kinds[:3])
