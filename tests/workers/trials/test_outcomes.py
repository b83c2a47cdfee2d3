"""Outcomes that a coordinator does not take as they are."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Probe,
    RankPeaks,
    TrialError,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.trials.outcomes import answering

SPEC = TrialSpec(workload=WorkloadRef(kind="builtin", target="vgg16"), batch_size=8, probe=Probe.CPU)
OUTCOME = TrialOutcome(
    verdict=Verdict.FITS,
    evidence=Evidence.MEASURED_CPU,
    device=Device(kind="cpu", name="a host"),
    batch_size=8,
    knobs=SPEC.knobs,
)


def test_an_outcome_of_what_was_asked_for_is_taken():
    assert answering(SPEC, OUTCOME) is OUTCOME


@pytest.mark.parametrize("lie", [{"batch_size": 1}, {"knobs": Knobs(precision="bf16")}])
def test_an_outcome_of_something_else_is_invalid(lie):
    told = answering(SPEC, dataclasses.replace(OUTCOME, **lie))
    assert told.verdict is Verdict.INVALID
    assert (told.batch_size, told.knobs, told.device) == (8, SPEC.knobs, OUTCOME.device)
    assert "was asked for batch 8" in told.error.message


def test_a_rank_alone_is_no_answer_for_several():
    together = dataclasses.replace(SPEC, setup=Setup(parallel=Parallel.parse("ddp:2")))
    told = answering(together, OUTCOME)
    assert told.verdict is Verdict.INVALID
    assert "} on 2 ranks: install" in told.error.message
    ranks = tuple(RankPeaks(rank=rank) for rank in range(2))
    both = dataclasses.replace(OUTCOME, ranks=ranks)
    assert answering(together, both) is both
    assert answering(SPEC, both).verdict is Verdict.INVALID


def test_a_spec_that_could_not_be_read_keeps_its_own_words():
    error = TrialError(kind="protocol", message="the spec cannot be read")
    refused = dataclasses.replace(OUTCOME, verdict=Verdict.FAILED, batch_size=0, error=error)
    assert answering(SPEC, refused) is refused
