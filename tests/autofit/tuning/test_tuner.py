"""The coordinator, with a study in a file and stand-ins for everything that costs time."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from autofit.dispatch.inline import InlineDispatcher
from autofit.errors import DispatchError, StorageError, WorkloadFailedError
from autofit.events import (
    BoundaryMoved,
    Event,
    PredictionCompared,
    Progress,
    TrialAbandoned,
    TrialFinished,
    TrialStarted,
    WorkersChanged,
)
from autofit.predict.curve import PredictedCurve
from autofit.search.agenda import Goal
from autofit.settings.goals import Objective
from autofit.study.study import TuningStudy
from autofit.tuning.curves import CurveSet
from autofit.tuning.frontier import Frontier
from autofit.tuning.trials import PredictedTrials
from autofit.tuning.tuner import Limits, Tuner
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Evidence,
    Peaks,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from tests.postgres import Postgres, running_postgres

MIB = 1024**2
BUDGET_BYTES = 512 * MIB
SPEC = TrialSpec(
    workload=WorkloadRef(kind="builtin", target="step"),
    batch_size=1,
    probe=Probe.CUDA,
    budget_bytes=BUDGET_BYTES,
)
CUDNN, NATIVE = Knobs(conv_algo="cudnn"), Knobs(conv_algo="native")


@pytest.fixture
def curves(make_curve: Callable[..., PredictedCurve]) -> CurveSet:
    """Predictions of both algorithms: 20 samples fit."""
    curves = CurveSet()
    for knobs in (CUDNN, NATIVE):
        curves.add(knobs, make_curve(knobs))
    return curves


def ignore(_event: Event) -> None:
    pass


def tune(
    study: TuningStudy,
    curves: CurveSet,
    trials: Any = None,
    emit: Callable[[Event], None] = ignore,
    **options: Any,
) -> Frontier:
    trials = trials or PredictedTrials(curves)
    return Tuner(spec=SPEC, study=study, curves=curves, trials=trials, emit=emit, **options).run()


def answers(frontier: Frontier) -> dict[str, tuple[int | None, int | None]]:
    return {
        entry.knobs.conv_algo: (entry.largest_batch, entry.first_failing_batch)
        for entry in frontier.entries()
    }


def test_without_a_measurement_the_curves_answer(open_study: Any, curves: CurveSet) -> None:
    study = open_study(curves=curves.prior)
    frontier = tune(study, curves)
    assert answers(frontier) == {"cudnn": (20, 21), "native": (20, 21)}
    assert {entry.evidence for entry in frontier.entries()} == {Evidence.PREDICTED}
    assert study.num_trials == 4


def test_a_predicted_trial_takes_the_time_that_the_clock_says(open_study: Any, curves: CurveSet) -> None:
    study = open_study(curves=curves.prior)
    tune(study, curves, PredictedTrials(curves, clock=itertools.count(step=3.0).__next__))
    assert {record.outcome.wall_seconds for record in study.outcomes()} == {3.0}


def test_a_measurement_that_agrees_takes_two_trials_a_setting(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card()
    frontier = tune(open_study(curves=curves.prior), curves, card)
    assert answers(frontier) == {"cudnn": (20, 21), "native": (20, 21)}
    assert {entry.evidence for entry in frontier.entries()} == {Evidence.MEASURED}
    assert sorted(card.tried) == [20, 20, 21, 21]


@pytest.mark.parametrize(("mib_per_sample", "largest"), [(10, 41), (19, 21), (21, 19), (30, 13), (400, 1)])
def test_where_a_measurement_disagrees_the_search_goes_on_to_the_measured_boundary(
    open_study: Any, curves: CurveSet, make_card: Any, mib_per_sample: int, largest: int
) -> None:
    card = make_card(mib_per_sample)
    frontier = tune(open_study(algos=("cudnn",), curves=curves.prior), curves, card)
    assert answers(frontier) == {"cudnn": (largest, largest + 1)}
    assert {largest, largest + 1} <= set(card.tried)
    assert len(card.tried) <= 8


def test_each_setting_is_searched_to_its_own_boundary(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card({"cudnn": 25, "native": 16})
    frontier = tune(open_study(curves=curves.prior), curves, card)
    assert answers(frontier) == {"cudnn": (16, 17), "native": (25, 26)}
    best = frontier.best()
    assert best is not None
    assert (best.batch_size, best.knobs, best.evidence) == (25, NATIVE, Evidence.MEASURED)


def test_without_predictions_measured_trials_alone_find_the_boundary(open_study: Any, make_card: Any) -> None:
    card = make_card()
    frontier = tune(open_study(), CurveSet(), card)
    assert answers(frontier) == {"cudnn": (20, 21), "native": (20, 21)}
    best = frontier.best()
    assert best is not None
    assert best.interval is None


def test_nothing_is_tried_below_the_smallest_batch_of_the_space(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card(400)
    frontier = tune(open_study(algos=("cudnn",), min_batch=2, curves=curves.prior), curves, card)
    assert answers(frontier) == {"cudnn": (None, 2)}
    assert frontier.best() is None
    assert min(card.tried) == 2


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.TIMEOUT])
def test_a_trial_that_is_lost_or_hangs_is_repeated_once(
    open_study: Any, curves: CurveSet, make_card: Any, verdict: Verdict
) -> None:
    card = make_card()
    card.surprises[21] = [verdict]
    study = open_study(algos=("cudnn",), curves=curves.prior)
    assert answers(tune(study, curves, card)) == {"cudnn": (20, 21)}
    assert sorted(card.tried) == [20, 21, 21]
    assert [record.outcome.verdict for record in study.outcomes()].count(verdict) == 1


@pytest.mark.parametrize("verdict", [Verdict.LOST, Verdict.TIMEOUT])
def test_a_trial_that_is_lost_or_hangs_twice_ends_the_search(
    open_study: Any, curves: CurveSet, make_card: Any, verdict: Verdict
) -> None:
    card = make_card()
    card.surprises[21] = [verdict, verdict]
    study = open_study(algos=("cudnn",), curves=curves.prior)
    with pytest.raises(DispatchError, match="batch 21: it broke"):
        tune(study, curves, card)
    assert [record.outcome.verdict for record in study.outcomes()].count(verdict) == 2


def test_losses_of_different_trials_are_not_taken_together(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card()
    card.surprises = {20: [Verdict.LOST], 21: [Verdict.TIMEOUT]}
    frontier = tune(open_study(algos=("cudnn",), curves=curves.prior), curves, card)
    assert answers(frontier) == {"cudnn": (20, 21)}


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.INVALID])
def test_a_workload_that_fails_ends_the_search_with_its_traceback(
    open_study: Any, curves: CurveSet, make_card: Any, verdict: Verdict
) -> None:
    card = make_card()
    card.surprises[20] = [verdict]
    study = open_study(curves=curves.prior)
    with pytest.raises(WorkloadFailedError, match="it broke") as raised:
        tune(study, curves, card)
    assert (raised.value.kind, raised.value.traceback) == ("workload", "line 1")
    assert len(card.tried) == 1
    assert [record.outcome.verdict for record in study.outcomes()] == [verdict]


def test_an_outcome_is_in_the_study_before_anybody_hears_of_it(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    study = open_study(curves=curves.prior)
    heard: list[int] = []

    def emit(event: Event) -> None:
        if isinstance(event, TrialFinished):
            assert event.trial in [record.trial_number for record in study.outcomes()]
            heard.append(event.trial)

    card = make_card()
    card.surprises[20] = [Verdict.LOST]
    tune(study, curves, card, emit)
    assert heard == list(range(study.num_trials))


def test_the_events_tell_every_trial_and_what_it_changes_once(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    events: list[Event] = []
    card = make_card()
    tune(open_study(curves=curves.prior), curves, card, events.append)
    started = [event.spec for event in events if isinstance(event, TrialStarted)]
    finished = [event.spec for event in events if isinstance(event, TrialFinished)]
    assert started == finished == card.specs
    moved = [event for event in events if isinstance(event, BoundaryMoved)]
    assert {event.knobs for event in moved} == {CUDNN, NATIVE}
    assert len(moved) == 2
    reserved_bytes = 500 * MIB
    assert moved[0].peaks == Peaks(250 * MIB, reserved_bytes, reserved_bytes + 400 * MIB)
    assert (moved[0].largest_batch, moved[0].peak_bytes) == (20, reserved_bytes)


def test_a_measured_trial_that_fits_is_held_against_its_prediction_which_the_study_keeps(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    events: list[Event] = []
    study = open_study(algos=("cudnn",), curves=curves.prior)
    tune(study, curves, make_card(19), events.append)
    compared = {event.trial: event for event in events if isinstance(event, PredictionCompared)}
    fitting = {r.trial_number: r for r in study.outcomes() if r.outcome.verdict is Verdict.FITS}
    assert compared.keys() == fitting.keys()
    first = compared[min(compared)]
    assert (first.predicted_bytes, first.measured_bytes) == (500 * MIB, 480 * MIB)
    kept = {trial.number: trial.user_attrs["predicted_bytes"] for trial in study._study.get_trials()}
    assert {number: kept[number] for number in compared} == {
        number: event.predicted_bytes for number, event in compared.items()
    }


def test_workers_are_told_as_they_become_busy_and_idle(open_study: Any, make_card: Any) -> None:
    events: list[Event] = []
    card = make_card()
    card.capacity = lambda _spec: 3
    tune(open_study(algos=("cudnn",)), CurveSet(), card, events.append)
    workers = [(event.num_busy, event.num_idle) for event in events if isinstance(event, WorkersChanged)]
    assert (3, 0) in workers
    assert workers[-1] == (0, 0)
    assert {busy + idle for busy, idle in workers[1:-1]} == {3}


def test_a_trial_that_is_given_up_is_told(open_study: Any, curves: CurveSet, make_card: Any) -> None:
    card, events = make_card(), list[Event]()
    card.submit = lambda _spec: Future()
    out_of_time = {"limits": Limits(seconds=5), "clock": itertools.count(step=3).__next__}
    tune(open_study(algos=("cudnn",), curves=curves.prior), curves, card, events.append, **out_of_time)
    assert [type(event) for event in events] == [TrialStarted, WorkersChanged, TrialAbandoned, WorkersChanged]
    assert events[0].trial == events[2].trial


def test_what_a_trial_returned_is_kept_as_it_is(open_study: Any, curves: CurveSet, make_card: Any) -> None:
    study = open_study(algos=("cudnn",), curves=curves.prior)
    tune(study, curves, make_card())
    outcome = study.outcomes()[0].outcome
    assert (outcome.wall_seconds, outcome.step_seconds, outcome.device.driver) == (7.0, 0.5, "570.1")


def test_a_settled_study_is_taken_up_without_a_trial(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    first = open_study(curves=curves.prior)
    before = answers(tune(first, curves, make_card()))
    first.close()
    card, events = make_card(), list[Event]()
    again = tune(open_study(curves=curves.prior), curves, card, events.append)
    assert answers(again) == before
    assert card.tried == []
    assert [type(event) for event in events] == [BoundaryMoved, BoundaryMoved]


@pytest.mark.parametrize("interrupted_at", [20, 21])
def test_an_interrupted_search_resumes_and_repeats_at_most_the_trial_in_flight(
    open_study: Any, curves: CurveSet, make_card: Any, interrupted_at: int
) -> None:
    card = make_card()
    card.surprises[interrupted_at] = [KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt), open_study(curves=curves.prior) as study:
        tune(study, curves, card)
    in_flight = card.specs[-1]
    frontier = tune(open_study(curves=curves.prior), curves, card)
    assert answers(frontier) == {"cudnn": (20, 21), "native": (20, 21)}
    repeated = [spec for spec in set(card.specs) if card.specs.count(spec) > 1]
    assert repeated == [in_flight]
    assert len(card.specs) == 5


# Several trials at once


class Gate:
    """A card whose trials of some sizes end only after others have."""

    def __init__(self, card: Any, *, after: dict[int, int]) -> None:
        self.card = card
        self.after = after
        self.ended = collections.defaultdict(threading.Event)
        self.order: list[int] = []

    def __call__(self, spec: TrialSpec) -> TrialOutcome:
        if spec.batch_size in self.after:
            assert self.ended[self.after[spec.batch_size]].wait(timeout=60)
        outcome = self.card.measure(spec)
        self.order.append(spec.batch_size)
        self.ended[spec.batch_size].set()
        return outcome


def tune_in_parallel(
    study: TuningStudy, curves: CurveSet, runner: Callable[[TrialSpec], TrialOutcome], num_parallel: int
) -> Frontier:
    with InlineDispatcher(num_parallel=num_parallel, runner=runner) as dispatcher:
        spec = dataclasses.replace(SPEC, probe=Probe.CPU)
        return Tuner(spec=spec, study=study, curves=curves, trials=dispatcher, emit=ignore).run()


@pytest.mark.parametrize("num_parallel", [2, 4])
@pytest.mark.parametrize("mib_per_sample", [20, 16, 30])
def test_several_trials_at_once_find_the_same_boundary(
    open_study: Any, curves: CurveSet, make_card: Any, num_parallel: int, mib_per_sample: int
) -> None:
    largest = {20: 20, 16: 25, 30: 13}[mib_per_sample]
    card = make_card(mib_per_sample)
    study = open_study(algos=("cudnn",), curves=curves.prior)
    frontier = tune_in_parallel(study, curves, card.measure, num_parallel)
    assert answers(frontier) == {"cudnn": (largest, largest + 1)}
    # Which end first is up to the system: every further one at once may be one in vain.
    assert len(card.tried) == len(set(card.tried)) <= 8 + num_parallel


def test_outcomes_are_told_in_the_order_in_which_they_end(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    gate = Gate(make_card(), after={20: 21})
    study = open_study(algos=("cudnn",), curves=curves.prior)
    assert answers(tune_in_parallel(study, curves, gate, 2)) == {"cudnn": (20, 21)}
    assert gate.order[:2] == [21, 20]
    assert [record.outcome.batch_size for record in study.outcomes()][:2] == [20, 21]


def test_a_failure_in_the_middle_leaves_every_outcome_that_came_in_the_study(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card()
    card.surprises[20] = [Verdict.FAILED]
    gate = Gate(card, after={20: 21})
    study = open_study(algos=("cudnn",), curves=curves.prior)
    with pytest.raises(WorkloadFailedError):
        tune_in_parallel(study, curves, gate, 2)
    assert {20, 21} <= {record.outcome.batch_size for record in study.outcomes()}
    study.close()
    assert not open_study(algos=("cudnn",), curves=curves.prior)._ledger.running


# Verification


def soaked(steps: int = 10) -> dict[str, Any]:
    return {"goal": Goal(soak_steps=steps)}


def test_the_winner_is_run_again_for_a_soak(open_study: Any, curves: CurveSet, make_card: Any) -> None:
    card = make_card()
    best = tune(open_study(algos=("cudnn",), curves=curves.prior, **soaked()), curves, card).best()
    assert best is not None
    assert (best.batch_size, best.soak_steps) == (20, 10)
    assert [(spec.batch_size, spec.num_steps) for spec in card.specs] == [(20, 3), (21, 10), (20, 10)]


def test_only_the_best_setting_is_verified(open_study: Any, curves: CurveSet, make_card: Any) -> None:
    card = make_card({"cudnn": 25, "native": 16})
    best = tune(open_study(curves=curves.prior, **soaked()), curves, card).best()
    assert best is not None
    assert (best.knobs, best.batch_size, best.soak_steps) == (NATIVE, 25, 10)
    assert [spec for spec in card.specs if spec.num_steps == 10 and spec.knobs == CUDNN] == []


def test_a_first_trial_whose_next_size_is_known_to_fail_is_the_soak_itself(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card(21)
    best = tune(open_study(algos=("cudnn",), curves=curves.prior, **soaked()), curves, card).best()
    assert best is not None
    assert (best.batch_size, best.soak_steps) == (19, 10)
    assert [spec.batch_size for spec in card.specs].count(19) == 1


def test_a_winner_that_fails_its_soak_counts_as_failing(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card, events = make_card(), list[Event]()
    card.soak_mib = 40
    study = open_study(algos=("cudnn",), curves=curves.prior, **soaked())
    frontier = tune(study, curves, card, events.append)
    best = frontier.best()
    assert best is not None
    assert (best.batch_size, best.soak_steps) == (18, 10)
    moved = [event.largest_batch for event in events if isinstance(event, BoundaryMoved)]
    assert (moved[0], moved[-1]) == (20, 18)
    assert answers(frontier) == {"cudnn": (18, 19)}


def test_a_verified_study_is_taken_up_without_a_trial(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    with open_study(algos=("cudnn",), curves=curves.prior, **soaked()) as first:
        tune(first, curves, make_card())
    card = make_card()
    best = tune(open_study(algos=("cudnn",), curves=curves.prior, **soaked()), curves, card).best()
    assert best is not None
    assert (best.soak_steps, card.tried) == (10, [])
    longer = tune(open_study(algos=("cudnn",), curves=curves.prior, **soaked(30)), curves, card).best()
    assert longer is not None
    assert (longer.soak_steps, card.tried) == (30, [20])


def test_a_prediction_is_not_soaked(open_study: Any, curves: CurveSet) -> None:
    study = open_study(curves=curves.prior, **soaked())
    best = tune(study, curves).best()
    assert best is not None
    assert (best.soak_steps, study.num_trials) == (None, 4)


# Throughput


def test_for_throughput_the_best_is_the_fastest_size_that_fits(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    """The rate is at its best at 5 samples: halving goes on as long as it costs nothing."""
    card = make_card()
    card.samples_per_second = lambda size: 100.0 - abs(size - 5)
    goal = Goal(objective=Objective.THROUGHPUT, soak_steps=10)
    frontier = tune(open_study(algos=("cudnn",), curves=curves.prior, goal=goal), curves, card)
    best, knee = frontier.best(), frontier.knee()
    assert best is not None
    assert (best.batch_size, best.soak_steps) == (5, 10)
    assert answers(frontier) == {"cudnn": (20, 21)}
    assert sorted(set(card.tried)) == [2, 5, 10, 20, 21]
    assert knee is not None
    assert (knee.batch_size, knee.best_samples_per_second) == (2, 100.0)


def test_where_the_rate_rises_with_the_batch_one_half_is_enough(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card()
    goal = Goal(objective=Objective.THROUGHPUT)
    frontier = tune(open_study(algos=("cudnn",), curves=curves.prior, goal=goal), curves, card)
    best, knee = frontier.best(), frontier.knee()
    assert best is not None
    assert knee is not None
    assert best.batch_size == knee.batch_size == 20
    assert sorted(card.tried) == [10, 20, 21]


# Limits


def test_a_search_that_ran_out_of_trials_ends_with_the_best_that_was_measured(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    study = open_study(algos=("cudnn",), curves=curves.prior, **soaked())
    frontier = tune(study, curves, make_card(16), limits=Limits(num_trials=1))
    best = frontier.best()
    assert best is not None
    assert (best.batch_size, best.soak_steps, frontier.stopped_by) == (20, None, "--max-trials")
    (entry,) = frontier.entries()
    assert not entry.is_settled
    more = tune(study, curves, make_card(16), limits=Limits(num_trials=20))
    assert (answers(more), more.stopped_by) == ({"cudnn": (25, 26)}, None)


def test_a_search_that_ended_within_its_limits_was_not_stopped(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    study = open_study(algos=("cudnn",), curves=curves.prior)
    assert tune(study, curves, make_card(), limits=Limits(num_trials=2)).stopped_by is None


def test_when_the_time_is_up_trials_in_flight_are_given_up(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card, over = make_card(), threading.Event()
    moments = iter([0.0, 0.0, 0.0])

    def stuck(spec: TrialSpec) -> TrialOutcome:
        assert over.wait(timeout=60)
        return card.measure(spec)

    study = open_study(algos=("cudnn",), curves=curves.prior)
    with InlineDispatcher(runner=stuck) as dispatcher:
        frontier = Tuner(
            spec=dataclasses.replace(SPEC, probe=Probe.CPU),
            study=study,
            curves=curves,
            trials=dispatcher,
            emit=ignore,
            limits=Limits(seconds=1.0),
            clock=lambda: next(moments, 1.0),
        ).run()
        over.set()
    assert (frontier.stopped_by, frontier.entries(), frontier.best()) == ("--max-seconds", (), None)
    study.close()
    assert not open_study(algos=("cudnn",), curves=curves.prior)._ledger.running


# Two coordinators of one study


def test_the_last_trials_of_another_process_are_waited_for(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    other, card, events = open_study(algos=("cudnn",), max_batch=2), make_card(), list[Event]()
    asks = [other.ask(), other.ask()]

    def let_the_other_go_on(_seconds: float) -> None:
        ask = asks.pop()
        outcome = card.measure(dataclasses.replace(SPEC, knobs=ask.knobs, batch_size=ask.batch_size))
        other.tell(ask.trial_number, outcome)

    mine = make_card()
    study = open_study(algos=("cudnn",), max_batch=2)
    frontier = tune(study, curves, mine, events.append, pause=let_the_other_go_on)
    assert answers(frontier) == {"cudnn": (2, None)}
    assert mine.tried == []
    assert {event.stage for event in events if isinstance(event, Progress)} == {
        "waiting for another process to finish trials of mine"
    }


def test_trials_that_another_process_left_behind_are_taken_over(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    other, card = open_study(algos=("cudnn",), max_batch=1, curves=curves.prior), make_card()
    other.ask()
    study = open_study(algos=("cudnn",), max_batch=1, curves=curves.prior)
    frontier = tune(study, curves, card, pause=lambda _seconds: other.close())
    assert answers(frontier) == {"cudnn": (1, None)}
    assert card.tried == [1]


def test_two_processes_share_a_study_and_ask_for_no_trial_twice(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    cards = [make_card(16), make_card(16)]
    studies = [open_study(curves=curves.prior, **soaked()) for _ in cards]
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(tune, study, curves, card, pause=lambda _seconds: None)
            for study, card in zip(studies, cards, strict=True)
        ]
        found = [answers(run.result()) for run in runs]
    assert found == [{"cudnn": (25, 26), "native": (25, 26)}] * 2
    asked = [(spec.knobs, spec.batch_size, spec.num_steps) for card in cards for spec in card.specs]
    assert len(asked) == len(set(asked))


# A database that goes away


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.mark.process
@pytest.mark.parametrize("name", ["kill", "stop"])
def test_a_server_that_is_gone_when_a_trial_ends_is_waited_for(
    open_study: Any, curves: CurveSet, make_card: Any, server: Postgres, name: str
) -> None:
    card = make_card({"cudnn": 25, "native": 16})
    starting = threading.Thread(target=server.start)

    def measure(spec: TrialSpec) -> TrialOutcome:
        if len(card.specs) == 2:
            server.kill() if name == "kill" else server.stop("immediate")
            starting.start()
        return card.measure(spec)

    study = open_study(curves=curves.prior, storage=server.url, name=name)
    with InlineDispatcher(runner=measure) as dispatcher:
        spec = dataclasses.replace(SPEC, probe=Probe.CPU)
        frontier = Tuner(spec=spec, study=study, curves=curves, trials=dispatcher, emit=ignore).run()
    starting.join()
    assert answers(frontier) == {"cudnn": (16, 17), "native": (25, 26)}
    told = [(record.outcome.knobs, record.outcome.batch_size) for record in study.outcomes()]
    assert told == [(spec.knobs, spec.batch_size) for spec in card.specs]
    assert len(set(told)) == len(told)


@pytest.mark.process
def test_a_server_that_stays_away_ends_the_search_and_the_next_one_goes_on(
    open_study: Any, curves: CurveSet, make_card: Any, server: Postgres
) -> None:
    """The trial whose outcome could not be told is the only one that runs again."""
    card = make_card()

    def measure(spec: TrialSpec) -> TrialOutcome:
        if len(card.specs) == 2:
            server.kill()
        return card.measure(spec)

    options = {"curves": curves.prior, "storage": server.url, "name": "away", "wait_seconds": 0.2}
    spec = dataclasses.replace(SPEC, probe=Probe.CPU)
    study = open_study(**options)
    with InlineDispatcher(runner=measure) as dispatcher, pytest.raises(StorageError) as away:
        Tuner(spec=spec, study=study, curves=curves, trials=dispatcher, emit=ignore).run()
    assert away.value.exit_code == 5
    assert "could not be reached" in away.value.message
    study.close()
    server.start()
    again = open_study(**options)
    frontier = tune(again, curves, card)
    assert answers(frontier) == {"cudnn": (20, 21), "native": (20, 21)}
    assert len(card.specs) == len(again.outcomes()) + 1


# Leases


def test_the_lease_of_a_trial_that_takes_long_is_renewed_while_it_runs(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    study, card = open_study(algos=("cudnn",), curves=curves.prior, lease_seconds=0.3), make_card()
    seen: list[float] = []

    def measure(spec: TrialSpec) -> TrialOutcome:
        while len(set(seen)) < 3:  # until it was renewed twice
            (running,) = [t for t in study._study.get_trials() if not t.state.is_finished()]
            seen.append(running.user_attrs["owner"]["lease_until_seconds"])
        return card.measure(spec)

    with InlineDispatcher(runner=measure) as dispatcher:
        spec = dataclasses.replace(SPEC, probe=Probe.CPU)
        frontier = Tuner(spec=spec, study=study, curves=curves, trials=dispatcher, emit=ignore).run()
    assert answers(frontier) == {"cudnn": (20, 21)}
    assert sorted(seen) == seen
