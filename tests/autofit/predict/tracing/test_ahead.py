"""Traces ahead: what was asked for runs while others are worked on, and nothing outlives whoever asked."""

from __future__ import annotations

import threading

import pytest

from autofit.predict.tracing.ahead import TracesAhead
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Heartbeat,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.trials import isolate

PATIENCE_SECONDS = 60.0  # a test that waits longer has failed


def spec_of(batch_size: int) -> TrialSpec:
    workload = WorkloadRef(kind="builtin", target="step")
    return TrialSpec(workload=workload, batch_size=batch_size, probe=Probe.PREDICT)


def outcome_of(spec: TrialSpec) -> TrialOutcome:
    return TrialOutcome(
        verdict=Verdict.FITS,
        evidence=Evidence.PREDICTED,
        device=Device(kind="cuda", name="sm_80"),
        batch_size=spec.batch_size,
        knobs=Knobs(),
    )


def test_what_was_asked_for_runs_once_before_anybody_takes_it() -> None:
    ran, all_ran = list[int](), threading.Event()

    def run(spec: TrialSpec) -> TrialOutcome:
        ran.append(spec.batch_size)
        if len(ran) == 3:
            all_ran.set()
        return outcome_of(spec)

    with TracesAhead(run) as ahead:
        for batch_size in (4, 6, 4, 10):
            ahead.ask(batch_size, spec_of(batch_size))
        assert all_ran.wait(PATIENCE_SECONDS)
        assert [ahead.take(size).batch_size for size in (10, 4, 6, 4)] == [10, 4, 6, 4]
        assert ahead.take(12) is None
    assert sorted(ran) == [4, 6, 10]


def test_whoever_waits_for_a_trial_hears_of_it() -> None:
    may_end = threading.Event()

    def run(spec: TrialSpec) -> TrialOutcome:
        isolate._report.get()(Heartbeat(phase="compiling graph 2"))
        assert may_end.wait(PATIENCE_SECONDS)
        return outcome_of(spec)

    def hear(beat: Heartbeat) -> None:
        heard.append(beat.phase)
        threads.add(threading.current_thread())
        may_end.set()

    heard, threads = list[str](), set[threading.Thread]()
    with TracesAhead(run) as ahead:
        ahead.ask(4, spec_of(4))
        assert ahead.take(4, hear) == outcome_of(spec_of(4))
    assert set(heard) == {"compiling graph 2"}
    assert threads == {threading.current_thread()}


def test_a_trial_that_runs_is_waited_for() -> None:
    may_end = threading.Event()

    def run(spec: TrialSpec) -> TrialOutcome:
        assert may_end.wait(PATIENCE_SECONDS)
        return outcome_of(spec)

    with TracesAhead(run) as ahead:
        ahead.ask("key", spec_of(8))
        threading.Timer(0, may_end.set).start()
        assert ahead.take("key").batch_size == 8


def test_what_a_trial_raises_reaches_whoever_takes_it() -> None:
    def run(_spec: TrialSpec) -> TrialOutcome:
        raise OSError("no process")

    with TracesAhead(run) as ahead:
        ahead.ask("key", spec_of(8))
        with pytest.raises(OSError, match="no process"):
            ahead.take("key")


def test_what_nobody_took_is_given_up_at_the_end_and_what_runs_is_ended() -> None:
    began, ran = threading.Semaphore(0), list[int]()

    def run(spec: TrialSpec) -> TrialOutcome:
        ran.append(spec.batch_size)
        began.release()
        ending = isolate._stop.get()  # which whoever waits for a trial's process looks at
        assert ending is not None
        assert ending.wait(PATIENCE_SECONDS)
        return outcome_of(spec)

    ahead = TracesAhead(run)
    for batch_size in range(1, 9):
        ahead.ask(batch_size, spec_of(batch_size))
    for _ in range(2):
        assert began.acquire(timeout=PATIENCE_SECONDS)
    ahead.close()
    assert sorted(ran) == [1, 2]
