"""What is kept up trial by trial is what all trials together say."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution

from autofit.search.agenda import Goal
from autofit.search.boundary import Boundary
from autofit.search.choice import decisive
from autofit.search.sampler import no_curve
from autofit.search.space import SearchSpace
from autofit.study.ledger import Ledger
from autofit.study.owner import Owner
from autofit.study.study import Ask
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.conv_algo import CONV_ALGOS
from autofit_workers.spec.protocol import TrialOutcome, Verdict

SPACE = SearchSpace(choices={"conv_algo": CONV_ALGOS}, max_batch=12)
VERDICTS = [Verdict.FITS, Verdict.FITS, Verdict.OOM, Verdict.THRASH, Verdict.LOST, None]
OWNER = Owner.this_process(lease_seconds=60.0)


@pytest.mark.parametrize("seed", range(20))
def test_trials_that_end_in_any_order_come_to_what_all_of_them_at_once_say(
    outcome_of: Any, budget_bytes: int, seed: int
) -> None:
    rng = random.Random(seed)
    ledger = Ledger(SPACE, budget_bytes=budget_bytes, curves=no_curve)
    running: dict[int, tuple[Knobs, int]] = {}
    told: dict[int, TrialOutcome] = {}
    for number in range(60):
        configuration = rng.choice(SPACE.settings), rng.randint(1, 12)
        if configuration in running.values():  # a study never has a size tried twice at once
            continue
        ledger.expect(number, configuration, OWNER)
        running[number] = configuration
        while running and rng.random() < 0.6:
            ended = rng.choice(list(running))
            knobs, batch_size = running.pop(ended)
            verdict = rng.choice(VERDICTS)
            ask: Any = Ask(
                trial_number=ended,
                knobs=knobs,
                batch_size=batch_size,
                purpose=Any,
                num_steps=3,
                asked_seconds=0.0,
            )
            peak_bytes = rng.randint(1, 9) * 1000 * (1 if verdict is Verdict.FITS else 10)
            outcome = None if verdict is None else outcome_of(ask, peak_bytes, verdict=verdict)
            ledger.finish(ended, (knobs, batch_size), outcome, num_steps=3)
            if outcome is not None:
                told[ended] = outcome
    assert ledger.num_returned == len(told)
    assert ledger.known == decisive(told[number] for number in sorted(told))
    whole = _boundaries(running, told, budget_bytes)
    for knobs, boundary in ledger.boundaries.items():
        parts = (boundary._fits, boundary._in_flight, boundary.is_settled, boundary.has_proposal)
        again = whole[knobs]
        assert parts == (again._fits, again._in_flight, again.is_settled, again.has_proposal)
    agenda = ledger.agenda(Goal())
    assert agenda.has_search == any(boundary.has_proposal for boundary in whole.values())
    assert agenda.is_settled == all(boundary.is_settled for boundary in whole.values())
    assert agenda.largest_fitting == max(boundary.largest_fitting or 0 for boundary in whole.values())
    assert set(agenda.in_flight) == set(running.values())
    assert ledger.open_settings() == [knobs for knobs, boundary in whole.items() if boundary.has_proposal]


def _boundaries(
    running: dict[int, tuple[Knobs, int]], told: dict[int, TrialOutcome], budget_bytes: int
) -> dict[Knobs, Boundary]:
    """What the trials say of each boundary, read all at once in the order of their numbers."""
    boundaries = {
        knobs: Boundary(budget_bytes=budget_bytes, sizes=SPACE.sizes(knobs)) for knobs in SPACE.settings
    }
    for number in sorted([*running, *told]):
        if number in running:
            knobs, batch_size = running[number]
            boundaries[knobs].expect(batch_size)
        elif (outcome := told[number]).verdict.is_about_memory:
            fits = outcome.verdict is Verdict.FITS
            boundaries[outcome.knobs].observe(
                outcome.batch_size, fits=fits, peak_bytes=outcome.budgeted_bytes
            )
    return boundaries


def test_settings_are_told_as_changed_once(outcome_of: Any, budget_bytes: int) -> None:
    ledger = Ledger(SPACE, budget_bytes=budget_bytes, curves=no_curve)
    assert ledger.take_changed() == []
    knobs = SPACE.settings[2]
    ledger.expect(0, (knobs, 1), OWNER)
    assert (ledger.take_changed(), ledger.take_changed()) == ([knobs], [])


def test_trials_of_a_setting_that_is_left_out_now_are_passed_over(budget_bytes: int) -> None:
    left_out = SPACE.settings[1]
    narrowed = dataclasses.replace(SPACE, left_out=frozenset([left_out]))
    ledger = Ledger(narrowed, budget_bytes=budget_bytes, curves=no_curve)
    ledger.take_in(_trial({**SPACE.to_params(left_out), "batch_size": 3}, SPACE.distributions, owner=OWNER))
    assert left_out not in ledger.boundaries
    assert not ledger.running


def test_trials_of_another_space_or_without_an_outcome_say_nothing(
    outcome_of: Any, budget_bytes: int
) -> None:
    ledger = Ledger(SPACE, budget_bytes=budget_bytes, curves=no_curve)
    knobs = SPACE.settings[0]
    other = {"conv_algo": CategoricalDistribution((knobs.conv_algo,)), "batch_size": IntDistribution(1, 9)}
    ask: Any = Ask(trial_number=0, knobs=knobs, batch_size=9, purpose=Any, num_steps=3, asked_seconds=0.0)
    params = {**SPACE.to_params(knobs), "batch_size": 9}
    ledger.take_in(_trial(params, other, outcome=outcome_of(ask, 1)))
    ledger.take_in(_trial(params, SPACE.distributions))
    ledger.take_in(_trial(params, SPACE.distributions, state=optuna.trial.TrialState.FAIL))
    for boundary in ledger.boundaries.values():
        assert (boundary.largest_fitting, boundary.first_failing) == (None, None)
        assert boundary.propose() == 1


def _trial(
    params: dict[str, Any],
    distributions: dict[str, Any],
    *,
    owner: Owner | None = None,
    outcome: TrialOutcome | None = None,
    state: optuna.trial.TrialState = optuna.trial.TrialState.COMPLETE,
) -> optuna.trial.FrozenTrial:
    if owner is not None:
        state = optuna.trial.TrialState.RUNNING
    attributes = {} if owner is None else {"owner": dataclasses.asdict(owner)}
    attributes |= {} if outcome is None else {"outcome": outcome.to_json()}
    value = params["batch_size"] if state == optuna.trial.TrialState.COMPLETE else None
    return optuna.create_trial(
        state=state, value=value, params=params, distributions=distributions, user_attrs=attributes
    )
