"""The coordinator, with a study in a file and stand-ins for everything that costs time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from autofit.curve_set import CurveSet
from autofit.errors import DispatchError, WorkloadFailedError
from autofit.predicted_curve import PredictedCurve
from autofit.report.frontier import Frontier
from autofit.search.study import TuningStudy
from autofit.service.events import Event, SettingSettled, TrialFinished, TrialStarted
from autofit.tuner import Tuner
from workers.protocol import Evidence, Knobs, Peaks, Probe, TrialSpec, Verdict, WorkloadRef

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
    measure: Any = None,
    emit: Callable[[Event], None] = ignore,
    **options: Any,
) -> Frontier:
    return Tuner(spec=SPEC, study=study, curves=curves, measure=measure, emit=emit, **options).run()


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
    tune(study, curves, clock=itertools.count(step=3.0).__next__)
    assert {record.outcome.wall_seconds for record in study.outcomes()} == {3.0}


def test_a_measurement_that_agrees_takes_two_trials_a_setting(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card()
    frontier = tune(open_study(curves=curves.prior), curves, card.measure)
    assert answers(frontier) == {"cudnn": (20, 21), "native": (20, 21)}
    assert {entry.evidence for entry in frontier.entries()} == {Evidence.MEASURED}
    assert sorted(card.tried) == [20, 20, 21, 21]


@pytest.mark.parametrize(("mib_per_sample", "largest"), [(10, 41), (19, 21), (21, 19), (30, 13), (400, 1)])
def test_where_a_measurement_disagrees_the_search_goes_on_to_the_measured_boundary(
    open_study: Any, curves: CurveSet, make_card: Any, mib_per_sample: int, largest: int
) -> None:
    card = make_card(mib_per_sample)
    frontier = tune(open_study(algos=("cudnn",), curves=curves.prior), curves, card.measure)
    assert answers(frontier) == {"cudnn": (largest, largest + 1)}
    assert {largest, largest + 1} <= set(card.tried)
    assert len(card.tried) <= 8


def test_each_setting_is_searched_to_its_own_boundary(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card({"cudnn": 25, "native": 16})
    frontier = tune(open_study(curves=curves.prior), curves, card.measure)
    assert answers(frontier) == {"cudnn": (16, 17), "native": (25, 26)}
    best = frontier.best()
    assert best is not None
    assert (best.batch_size, best.knobs, best.evidence) == (25, NATIVE, Evidence.MEASURED)


def test_without_predictions_measured_trials_alone_find_the_boundary(open_study: Any, make_card: Any) -> None:
    card = make_card()
    frontier = tune(open_study(), CurveSet(), card.measure)
    assert answers(frontier) == {"cudnn": (20, 21), "native": (20, 21)}
    best = frontier.best()
    assert best is not None
    assert best.interval is None


def test_nothing_is_tried_below_the_smallest_batch_of_the_space(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card(400)
    frontier = tune(open_study(algos=("cudnn",), min_batch=2, curves=curves.prior), curves, card.measure)
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
    assert answers(tune(study, curves, card.measure)) == {"cudnn": (20, 21)}
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
        tune(study, curves, card.measure)
    assert [record.outcome.verdict for record in study.outcomes()].count(verdict) == 2


def test_losses_of_different_trials_are_not_taken_together(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    card = make_card()
    card.surprises = {20: [Verdict.LOST], 21: [Verdict.TIMEOUT]}
    frontier = tune(open_study(algos=("cudnn",), curves=curves.prior), curves, card.measure)
    assert answers(frontier) == {"cudnn": (20, 21)}


@pytest.mark.parametrize("verdict", [Verdict.FAILED, Verdict.INVALID])
def test_a_workload_that_fails_ends_the_search_with_its_traceback(
    open_study: Any, curves: CurveSet, make_card: Any, verdict: Verdict
) -> None:
    card = make_card()
    card.surprises[20] = [verdict]
    study = open_study(curves=curves.prior)
    with pytest.raises(WorkloadFailedError, match="it broke") as raised:
        tune(study, curves, card.measure)
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
    tune(study, curves, card.measure, emit)
    assert heard == list(range(study.num_trials))


def test_the_events_tell_every_trial_and_every_settled_setting_once(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    events: list[Event] = []
    card = make_card()
    tune(open_study(curves=curves.prior), curves, card.measure, events.append)
    started = [event.spec for event in events if isinstance(event, TrialStarted)]
    finished = [event.spec for event in events if isinstance(event, TrialFinished)]
    assert started == finished == card.specs
    settled = [event for event in events if isinstance(event, SettingSettled)]
    assert {event.knobs for event in settled} == {CUDNN, NATIVE}
    assert len(settled) == 2
    reserved_bytes = 500 * MIB
    assert settled[0].peaks == Peaks(None, reserved_bytes, reserved_bytes + 400 * MIB)
    assert (settled[0].largest_batch, settled[0].first_failing_batch) == (20, 21)


def test_what_a_trial_returned_is_kept_as_it_is(open_study: Any, curves: CurveSet, make_card: Any) -> None:
    study = open_study(algos=("cudnn",), curves=curves.prior)
    tune(study, curves, make_card().measure)
    outcome = study.outcomes()[0].outcome
    assert (outcome.wall_seconds, outcome.step_seconds, outcome.device.driver) == (7.0, 0.5, "570.1")


def test_a_settled_study_is_taken_up_without_a_trial(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    first = open_study(curves=curves.prior)
    before = answers(tune(first, curves, make_card().measure))
    first.close()
    card, events = make_card(), list[Event]()
    again = tune(open_study(curves=curves.prior), curves, card.measure, events.append)
    assert answers(again) == before
    assert card.tried == []
    assert [type(event) for event in events] == [SettingSettled, SettingSettled]


@pytest.mark.parametrize("interrupted_at", [20, 21])
def test_an_interrupted_search_resumes_and_repeats_at_most_the_trial_in_flight(
    open_study: Any, curves: CurveSet, make_card: Any, interrupted_at: int
) -> None:
    card = make_card()
    card.surprises[interrupted_at] = [KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt), open_study(curves=curves.prior) as study:
        tune(study, curves, card.measure)
    in_flight = card.specs[-1]
    frontier = tune(open_study(curves=curves.prior), curves, card.measure)
    assert answers(frontier) == {"cudnn": (20, 21), "native": (20, 21)}
    repeated = [spec for spec in set(card.specs) if card.specs.count(spec) > 1]
    assert repeated == [in_flight]
    assert len(card.specs) == 5


def test_it_does_not_answer_while_another_process_runs_the_last_trials(
    open_study: Any, curves: CurveSet, make_card: Any
) -> None:
    other = open_study(algos=("cudnn",), curves=curves.prior)
    taken = {other.ask().batch_size, other.ask().batch_size}
    study = open_study(algos=("cudnn",), max_batch=300, curves=curves.prior)
    with pytest.raises(DispatchError, match=r"another process .* --study"):
        tune(study, curves, make_card().measure)
    assert taken.isdisjoint(record.outcome.batch_size for record in study.outcomes())
