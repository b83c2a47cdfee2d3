"""What is left once boundaries are known, from outcomes alone."""

from __future__ import annotations

from typing import Any

import pytest

from autofit.search.agenda import Agenda, Goal, Purpose, Step
from autofit.search.boundary import Boundary
from autofit.search.choice import Knee, best_of, decisive, knee_of
from autofit.settings.goals import Objective
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, TrialOutcome, Verdict

CUDNN, NATIVE = Knobs(conv_algo="cudnn"), Knobs(conv_algo="native")
FITS, OOM = Verdict.FITS, Verdict.OOM
THROUGHPUT = Goal(objective=Objective.THROUGHPUT)


def outcome(
    batch_size: int, verdict: Verdict = FITS, *, knobs: Knobs = CUDNN, rate: float | None = None
) -> TrialOutcome:
    return TrialOutcome(
        verdict=verdict,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="card"),
        batch_size=batch_size,
        knobs=knobs,
        step_seconds=None if rate is None else batch_size / rate,
    )


def agenda(*outcomes: TrialOutcome, goal: Goal, **changes: Any) -> Agenda:
    """Of settings whose boundary the outcomes settle at 64."""
    boundaries = {}
    for knobs in dict.fromkeys(o.knobs for o in outcomes):
        boundaries[knobs] = Boundary(budget_bytes=1, max_batch=64)
        for told in outcomes:
            if told.knobs == knobs:
                boundaries[knobs].observe(told.batch_size, fits=told.verdict is FITS)
    seen = boundaries.values()
    search = {
        "is_settled": all(boundary.is_settled for boundary in seen),
        "has_search": any(boundary.has_proposal for boundary in seen),
        "largest_fitting": max(boundary.largest_fitting or 0 for boundary in seen),
    }
    parts = {**search, "num_steps": {}, "in_flight": (), "min_batch": 1, **changes}
    return Agenda(goal=goal, boundaries=boundaries, known=decisive(outcomes), **parts)


def test_the_winner_is_verified_once_every_boundary_is_known() -> None:
    goal = Goal(soak_steps=20)
    verify = Step(purpose=Purpose.VERIFY, knobs=CUDNN, batch_size=64)
    assert agenda(outcome(64), goal=goal).next_step() == verify
    still_open = agenda(outcome(64), outcome(8, knobs=NATIVE), goal=goal)
    assert (still_open.next_step(), still_open.is_complete) == (None, False)


@pytest.mark.parametrize(("num_steps", "is_complete"), [(3, False), (19, False), (20, True), (40, True)])
def test_so_many_steps_verify(num_steps: int, is_complete: bool) -> None:
    done = agenda(outcome(64), goal=Goal(soak_steps=20), num_steps={(CUDNN, 64): num_steps})
    assert done.is_complete == is_complete


def test_a_verification_under_way_is_waited_for() -> None:
    waiting = agenda(outcome(64), goal=Goal(soak_steps=20), in_flight={(CUDNN, 64)})
    assert (waiting.next_step(), waiting.is_complete) == (None, False)


def test_without_a_soak_or_a_winner_nothing_is_left() -> None:
    assert agenda(outcome(64), goal=Goal()).is_complete
    assert agenda(outcome(1, OOM), goal=Goal(soak_steps=20)).is_complete


def test_for_throughput_halves_are_timed_as_long_as_they_are_not_slower() -> None:
    known = [outcome(64, rate=100.0)]
    for size, rate in ((32, 99.0), (16, 97.0), (8, 96.0)):
        step = agenda(*known, goal=THROUGHPUT).next_step()
        assert step == Step(purpose=Purpose.RATE, knobs=CUDNN, batch_size=size)
        known.append(outcome(size, rate=rate))
    assert agenda(*known, goal=THROUGHPUT).is_complete
    slower = [outcome(64, rate=100.0), outcome(32, rate=90.0)]
    assert agenda(*slower, goal=THROUGHPUT).is_complete


def test_rates_of_several_settings_are_timed_at_once() -> None:
    known = [outcome(64, rate=100.0), outcome(64, rate=90.0, knobs=NATIVE)]
    second = agenda(*known, goal=THROUGHPUT, in_flight={(CUDNN, 32)}).next_step()
    assert second == Step(purpose=Purpose.RATE, knobs=NATIVE, batch_size=32)


def test_a_trial_that_may_win_does_the_steps_of_a_soak() -> None:
    goal = Goal(num_steps=3, soak_steps=20)
    settling = agenda(outcome(60), outcome(62, OOM), outcome(30, knobs=NATIVE), goal=goal)
    assert settling.num_steps_of(CUDNN, 61, Purpose.BOUNDARY) == 20
    assert settling.num_steps_of(CUDNN, 62, Purpose.BOUNDARY) == 3
    assert settling.num_steps_of(NATIVE, 31, Purpose.BOUNDARY) == 3  # too small to be the best
    assert settling.num_steps_of(CUDNN, 30, Purpose.RATE) == 3
    assert settling.num_steps_of(CUDNN, 60, Purpose.VERIFY) == 20


def test_the_fastest_that_fits_is_the_best_for_throughput_and_the_largest_for_batch() -> None:
    outcomes = [outcome(64, rate=100.0), outcome(32, rate=110.0), outcome(16, OOM, rate=500.0)]
    state = agenda(*outcomes, goal=THROUGHPUT)
    for objective, size in ((Objective.THROUGHPUT, 32), (Objective.BATCH, 64)):
        best = best_of(state.known, state.boundaries, objective)
        assert best is not None
        assert best.batch_size == size


def test_where_no_step_was_timed_the_largest_is_the_best() -> None:
    state = agenda(outcome(64), outcome(32), goal=THROUGHPUT)
    best = best_of(state.known, state.boundaries, Objective.THROUGHPUT)
    assert best is not None
    assert best.batch_size == 64
    assert knee_of(state.known) is None


def test_the_knee_is_the_smallest_size_within_five_percent_of_the_best_rate() -> None:
    outcomes = [outcome(64, rate=100.0), outcome(32, rate=95.0), outcome(16, rate=94.9)]
    assert knee_of(decisive(outcomes)) == Knee(
        batch_size=32, knobs=CUDNN, samples_per_second=95.0, best_samples_per_second=100.0
    )
