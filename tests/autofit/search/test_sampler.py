from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import RandomSampler
from optuna.trial import TrialState

from autofit.search.curves import CachedCurve
from autofit.search.sampler import MEMORY_CONSTRAINT, PEAK_ATTRIBUTE, BoundarySampler
from autofit.search.space import SearchSpace
from workers.knobs import Knobs
from workers.knobs.conv_algo import CUDA_POLICIES

MAX_BATCH = 300


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(optuna.logging.INFO)


@pytest.fixture
def four_settings() -> SearchSpace:
    return SearchSpace(choices={"conv_algo": CUDA_POLICIES}, max_batch=MAX_BATCH)


def table(peaks: dict[Knobs, list[int]]) -> Callable[[Knobs, int], int]:
    return lambda knobs, batch_size: peaks[knobs][batch_size - 1]


def search(
    space: SearchSpace, sampler: BoundarySampler, peak_bytes: Callable[[Knobs, int], int], budget_bytes: int
) -> tuple[optuna.Study, list[Knobs]]:
    """Asks and tells until nothing is open, each time with what only the study remembers."""
    study = optuna.create_study(sampler=sampler, direction="maximize")
    order = []
    while any(b.has_proposal for b in sampler.boundaries(study.get_trials(deepcopy=False)).values()):
        trial = study.ask()
        knobs, batch_size = space.suggest(trial)
        order.append(knobs)
        peak = peak_bytes(knobs, batch_size)
        if peak <= budget_bytes:
            trial.set_user_attr(PEAK_ATTRIBUTE, peak)
        trial.set_constraint(MEMORY_CONSTRAINT, (peak - budget_bytes) / budget_bytes)
        study.tell(trial, batch_size)
    return study, order


def test_oracle_every_setting_of_200_curves_ends_at_its_brute_force_largest(
    four_settings: SearchSpace, random_curve: Any, budget_bytes: int
) -> None:
    for seed in range(50):
        rng = random.Random(seed)
        curves = {knobs: random_curve(rng, MAX_BATCH) for knobs in four_settings.settings}
        cached = {knobs: CachedCurve(curve) for knobs, curve in curves.items()}
        sampler = BoundarySampler(
            four_settings, budget_bytes=budget_bytes, curves=cached.__getitem__, seed=seed
        )
        peaks = {knobs: curve.reserved for knobs, curve in curves.items()}
        study, _ = search(four_settings, sampler, table(peaks), budget_bytes)
        boundaries = sampler.boundaries(study.trials)
        for knobs, curve in curves.items():
            assert boundaries[knobs].is_settled
            assert boundaries[knobs].largest_fitting == curve.brute_force(budget_bytes)
        assert len(study.trials) <= 2 * len(curves)
        largest = [curve.brute_force(budget_bytes) for curve in curves.values()]
        if any(largest):
            assert study.best_value == max(size for size in largest if size is not None)


def test_oracle_measured_alone_every_setting_ends_at_a_size_that_fits_while_the_next_fails(
    four_settings: SearchSpace, budget_bytes: int
) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        memory = {
            knobs: [int((base + slope * b) * rng.gauss(1, 0.01)) for b in range(1, MAX_BATCH + 1)]
            for knobs in four_settings.settings
            for base, slope in [(rng.uniform(0.1, 0.6) * budget_bytes, budget_bytes / rng.uniform(2, 600))]
        }
        sampler = BoundarySampler(four_settings, budget_bytes=budget_bytes, seed=seed)
        study, _ = search(four_settings, sampler, table(memory), budget_bytes)
        for knobs, boundary in sampler.boundaries(study.trials).items():
            largest = boundary.largest_fitting
            assert boundary.is_settled
            assert largest is None or memory[knobs][largest - 1] <= budget_bytes
            assert largest == MAX_BATCH or memory[knobs][largest or 0] > budget_bytes


def test_a_settled_setting_is_not_chosen_again(four_settings: SearchSpace, budget_bytes: int) -> None:
    sampler = BoundarySampler(four_settings, budget_bytes=budget_bytes, seed=0)
    _, order = search(four_settings, sampler, lambda _, b: b * 100, budget_bytes)
    counts = {order.count(knobs) for knobs in four_settings.settings}
    assert len(counts) == 1


def test_the_inner_sampler_chooses_the_setting(four_settings: SearchSpace, budget_bytes: int) -> None:
    class LastFirst(RandomSampler):
        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return param_distribution.choices[-1]

    sampler = BoundarySampler(four_settings, budget_bytes=budget_bytes, inner=LastFirst())
    _, order = search(four_settings, sampler, lambda _, b: b * 100, budget_bytes)
    first, *others = dict.fromkeys(order)
    assert first == four_settings.settings[-1]
    assert others == list(four_settings.settings[:-1])


def test_a_product_of_knobs_is_searched_to_its_last_combination(budget_bytes: int) -> None:
    space = SearchSpace(
        choices={"conv_algo": CUDA_POLICIES, "precision": ("fp32", "amp-bf16"), "optimizer": ("sgd", "adam")},
        max_batch=MAX_BATCH,
    )
    sampler = BoundarySampler(space, budget_bytes=budget_bytes, seed=0)
    study, order = search(space, sampler, lambda k, b: b * (40 + 10 * len(k.precision)), budget_bytes)
    assert set(order) == set(space.settings)
    found = {k: b.largest_fitting for k, b in sampler.boundaries(study.trials).items()}
    assert found == {k: budget_bytes // (40 + 10 * len(k.precision)) for k in space.settings}


def test_a_knob_fixed_by_an_enqueued_trial_is_kept(four_settings: SearchSpace, budget_bytes: int) -> None:
    sampler = BoundarySampler(four_settings, budget_bytes=budget_bytes, seed=0)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    study.enqueue_trial({"conv_algo": "native"})
    knobs, batch_size = four_settings.suggest(study.ask())
    assert (knobs.conv_algo, batch_size) == ("native", 1)


def test_trials_of_another_space_or_without_a_verdict_say_nothing(
    four_settings: SearchSpace, budget_bytes: int
) -> None:
    own = four_settings.distributions
    other = {"conv_algo": CategoricalDistribution(("cudnn",)), "batch_size": IntDistribution(1, 9)}
    trials = [
        optuna.create_trial(
            value=9, params={"conv_algo": "cudnn", "batch_size": 9}, distributions=distributions
        )
        for distributions in (own, other)
    ]
    failed = optuna.create_trial(
        state=TrialState.FAIL, params={"conv_algo": "cudnn", "batch_size": 9}, distributions=own
    )
    sampler = BoundarySampler(four_settings, budget_bytes=budget_bytes)
    for boundary in sampler.boundaries([*trials, failed]).values():
        assert (boundary.largest_fitting, boundary.first_failing) == (None, None)
        assert boundary.propose() == 1


def test_when_all_is_settled_the_answer_is_asked_for_again(
    four_settings: SearchSpace, budget_bytes: int
) -> None:
    """Another process may have taken the last open size between the look and the choice."""
    sampler = BoundarySampler(four_settings, budget_bytes=budget_bytes, seed=0)
    study, _ = search(four_settings, sampler, lambda _, b: b * 100, budget_bytes)
    assert four_settings.suggest(study.ask())[1] == budget_bytes // 100
