from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler

from autofit.search.boundary import Boundary
from autofit.search.curves import CachedCurve, Curve
from autofit.search.sampler import BoundarySampler, no_curve
from autofit.search.space import SearchSpace
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.conv_algo import CUDA_POLICIES

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


def no_size(knobs: Knobs) -> None:
    """No size decides more than its own setting."""


def search(
    space: SearchSpace,
    sampler: BoundarySampler,
    peak_bytes: Callable[[Knobs, int], int],
    budget_bytes: int,
    curves: Callable[[Knobs], Curve | None] = no_curve,
) -> tuple[dict[Knobs, Boundary], list[tuple[Knobs, int]]]:
    """Tries one configuration after the other until nothing is open."""
    study = optuna.create_study(direction="maximize")
    boundaries = {
        knobs: Boundary(budget_bytes=budget_bytes, sizes=space.sizes(knobs), prior=curves(knobs))
        for knobs in space.settings
    }
    order = []
    while open_settings := [knobs for knobs, boundary in boundaries.items() if boundary.has_proposal]:
        knobs, batch_size = sampler.choose(study, boundaries, open_settings, no_size)
        order.append((knobs, batch_size))
        peak = peak_bytes(knobs, batch_size)
        fits = peak <= budget_bytes
        boundaries[knobs].observe(batch_size, fits=fits, peak_bytes=peak if fits else None)
    return boundaries, order


def test_oracle_every_setting_of_200_curves_ends_at_its_brute_force_largest(
    four_settings: SearchSpace, random_curve: Any, budget_bytes: int
) -> None:
    for seed in range(50):
        rng = random.Random(seed)
        curves = {knobs: random_curve(rng, MAX_BATCH) for knobs in four_settings.settings}
        cached = {knobs: CachedCurve.of(curve) for knobs, curve in curves.items()}
        sampler = BoundarySampler(four_settings, seed=seed)
        peaks = table({knobs: curve.reserved for knobs, curve in curves.items()})
        boundaries, order = search(four_settings, sampler, peaks, budget_bytes, cached.__getitem__)
        for knobs, curve in curves.items():
            assert boundaries[knobs].is_settled
            assert boundaries[knobs].largest_fitting == curve.brute_force(budget_bytes)
        assert len(order) <= 2 * len(curves)
        largest = [curve.brute_force(budget_bytes) for curve in curves.values()]
        if any(largest):
            fitting = [size for knobs, size in order if peaks(knobs, size) <= budget_bytes]
            assert max(fitting) == max(size for size in largest if size is not None)


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
        sampler = BoundarySampler(four_settings, seed=seed)
        boundaries, _ = search(four_settings, sampler, table(memory), budget_bytes)
        for knobs, boundary in boundaries.items():
            largest = boundary.largest_fitting
            assert boundary.is_settled
            assert largest is None or memory[knobs][largest - 1] <= budget_bytes
            assert largest == MAX_BATCH or memory[knobs][largest or 0] > budget_bytes


def test_a_settled_setting_is_not_chosen_again(four_settings: SearchSpace, budget_bytes: int) -> None:
    sampler = BoundarySampler(four_settings, seed=0)
    _, order = search(four_settings, sampler, lambda _, b: b * 100, budget_bytes)
    tried = [knobs for knobs, _ in order]
    counts = {tried.count(knobs) for knobs in four_settings.settings}
    assert len(counts) == 1


def test_the_inner_sampler_chooses_the_setting(four_settings: SearchSpace, budget_bytes: int) -> None:
    class LastFirst(RandomSampler):
        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return param_distribution.choices[-1]

    sampler = BoundarySampler(four_settings, inner=LastFirst())
    _, order = search(four_settings, sampler, lambda _, b: b * 100, budget_bytes)
    first, *others = dict.fromkeys(knobs for knobs, _ in order)
    assert first == four_settings.settings[-1]
    assert others == list(four_settings.settings[:-1])


def test_a_product_of_knobs_is_searched_to_its_last_combination(budget_bytes: int) -> None:
    space = SearchSpace(
        choices={"conv_algo": CUDA_POLICIES, "precision": ("fp32", "amp-bf16"), "optimizer": ("sgd", "adam")},
        max_batch=MAX_BATCH,
    )
    sampler = BoundarySampler(space, seed=0)
    boundaries, order = search(space, sampler, lambda k, b: b * (40 + 10 * len(k.precision)), budget_bytes)
    assert {knobs for knobs, _ in order} == set(space.settings)
    found = {knobs: boundary.largest_fitting for knobs, boundary in boundaries.items()}
    assert found == {k: budget_bytes // (40 + 10 * len(k.precision)) for k in space.settings}
