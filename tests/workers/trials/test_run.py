"""The one door: which process a trial gets, and what a failure under a limit is taken for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Probe,
    TrialError,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.trials.run import close_predictor, may_be_memory, run, start_predictor

FAULTY = Path(__file__).parents[2] / "faults" / "faulty.py"


def spec_of(attribute: str, probe: Probe) -> TrialSpec:
    reference = WorkloadRef(kind="file", target=f"{FAULTY}:{attribute}")
    return TrialSpec(workload=reference, batch_size=2, probe=probe)


def outcome_of(verdict: Verdict, **environment: str) -> TrialOutcome:
    return TrialOutcome(
        verdict=verdict,
        evidence=Evidence.MEASURED_CPU,
        device=Device(kind="cpu", name="a processor"),
        batch_size=2,
        knobs=Knobs(),
        environment=environment,
    )


@pytest.fixture
def others():
    """The processes beside the one of the predictions, which ends with the test."""
    close_predictor()
    before = children()
    yield before
    close_predictor()
    assert children() <= before


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def started() -> set[psutil.Process]:
    """Those that this process started itself; each has others below it, inside the boundary."""
    return set(psutil.Process().children())


def test_predictions_share_one_process_that_can_be_started_ahead(others):
    start_predictor()
    (process,) = started() - others
    for _ in range(2):
        outcome = run(spec_of("mistaken", Probe.PREDICT))
        assert outcome.verdict is Verdict.FAILED
        assert outcome.evidence is Evidence.PREDICTED
        assert outcome.error.message.startswith("TypeError")
        assert outcome.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert started() - others == {process}


def test_where_several_predictions_are_expected_two_processes_start_at_once(others, monkeypatch):
    for cores, num_processes in (({0}, 1), ({0, 1}, 2)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _pid, cores=cores: cores)
        start_predictor(several=True)
        assert len(started() - others) == num_processes


@pytest.mark.parametrize(
    "outcome",
    [
        outcome_of(Verdict.LOST, exit="SIGABRT"),
        outcome_of(Verdict.LOST, exit="SIGSEGV"),
        outcome_of(Verdict.LOST, exit="exit code 1"),
        outcome_of(Verdict.FAILED, exception="RuntimeError"),
        outcome_of(Verdict.FAILED, exception="SystemError"),
    ],
)
def test_what_does_not_name_its_cause_may_be_memory(outcome):
    assert may_be_memory(outcome)


@pytest.mark.parametrize(
    "outcome",
    [
        outcome_of(Verdict.LOST, exit="SIGKILL"),
        outcome_of(Verdict.LOST),
        outcome_of(Verdict.TIMEOUT),
        outcome_of(Verdict.FAILED, exception="TypeError"),
        outcome_of(Verdict.INVALID, exception="InvalidTrialError"),
        outcome_of(Verdict.FITS),
        outcome_of(Verdict.OOM),
    ],
)
def test_what_has_a_cause_of_its_own_is_never_taken_for_memory(outcome):
    assert not may_be_memory(outcome)


def test_what_a_script_says_itself_may_be_that_it_caught_memory_running_out():
    for verdict in (Verdict.FAILED, Verdict.INVALID):
        said = replace(outcome_of(verdict), error=TrialError(kind="user", message="no memory left"))
        assert may_be_memory(said, of_script=True)
        assert not may_be_memory(said)
    ours = replace(outcome_of(Verdict.FAILED), error=TrialError(kind="environment", message="no such card"))
    assert not may_be_memory(ours, of_script=True)
    assert not may_be_memory(outcome_of(Verdict.TIMEOUT), of_script=True)
