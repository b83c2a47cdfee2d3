"""The bookkeeping of open futures, which every dispatcher shares."""

from __future__ import annotations

from concurrent.futures import CancelledError, ThreadPoolExecutor, wait

import pytest

from autofit.dispatch.base import PendingTrials
from autofit.errors import DispatchError
from autofit_workers.spec.protocol import Probe, TrialError, TrialSpec, Verdict, WorkloadRef
from autofit_workers.trials.outcomes import without_answer

SPEC = TrialSpec(workload=WorkloadRef(kind="builtin", target="any"), batch_size=1, probe=Probe.CPU)
OUTCOME = without_answer(SPEC, Verdict.LOST, TrialError(kind="environment", message="gone"))


@pytest.fixture
def pending() -> PendingTrials[str]:
    return PendingTrials()


def test_an_outcome_completes_its_future_and_no_other(pending: PendingTrials[str]):
    first, second = pending.add("first"), pending.add("second")
    pending.complete(second, OUTCOME)
    assert second.result(timeout=0) is OUTCOME
    assert not first.done()
    assert pending.snapshot() == {first: "first"}


def test_an_error_is_raised_by_its_future(pending: PendingTrials[str]):
    future = pending.add("trial")
    pending.complete(future, DispatchError("no worker"))
    with pytest.raises(DispatchError, match="no worker"):
        future.result(timeout=0)


def test_a_future_cancelled_by_hand_discards_the_outcome(pending: PendingTrials[str]):
    future = pending.add("trial")
    assert future.cancel()
    assert pending.snapshot() == {future: "trial"}  # it still runs
    pending.complete(future, OUTCOME)
    assert future.cancelled()
    assert pending.snapshot() == {}


def test_cancel_all_wakes_those_who_wait_and_later_outcomes_are_dropped(pending: PendingTrials[str]):
    futures = [pending.add("first"), pending.add("second")]
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(wait, futures, 60)
        assert pending.cancel_all() == ["first", "second"]
        assert waiter.result().not_done == set()
    pending.complete(futures[0], OUTCOME)
    with pytest.raises(CancelledError):
        futures[0].result(timeout=0)
    assert pending.cancel_all() == []
