"""What Ray's failures are told as, whatever their texts."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from ray import exceptions

from autofit.dispatch.ray import _outcome
from autofit.errors import DispatchError
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.shown import LONGEST

SPEC = TrialSpec(workload=WorkloadRef(kind="builtin", target="davenet"), batch_size=2, probe=Probe.CPU)


class MuteError(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise KeyError("mute")


def told(error: BaseException) -> TrialOutcome | DispatchError:
    answer: Future[str] = Future()
    answer.set_exception(error)
    return _outcome(SPEC, answer)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MuteError(), "(MuteError: (its text cannot be made: KeyError))"),
        (ValueError("postgresql://me:a-password@db/x"), "(ValueError: postgresql://me:***@db/x)"),
        (ValueError("one\ntwo"), "(ValueError: one)"),
        (ValueError("a" * 10_000), "a…)"),
    ],
)
def test_a_failure_is_one_short_line(error: Exception, said: str) -> None:
    failure = told(error)
    assert isinstance(failure, DispatchError)
    assert said in failure.message
    assert len(failure.message) < 2 * LONGEST


def test_a_worker_that_died_is_a_lost_trial() -> None:
    outcome = told(exceptions.WorkerCrashedError())
    assert isinstance(outcome, TrialOutcome)
    assert outcome.verdict is Verdict.LOST
    assert outcome.error is not None
    assert "(WorkerCrashedError: " in outcome.error.message
