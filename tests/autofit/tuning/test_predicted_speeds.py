"""How fast the settings of a search are, as far as predicted: of a real model, and of made-up curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autofit.hardware.card import card_named
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import Predictor
from autofit.predict.times.step_times import StepTime
from autofit.search.boundary import Boundary, largest_fitting_batch
from autofit.search.choice import EQUALLY_FAST_RATE, NEAR_THE_BEST_RATE
from autofit.settings.workloads import refer
from autofit.tuning.predicted_speeds import PredictedSpeeds
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.time.interval import Confidence, TimeResiduals
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialOutcome, TrialSpec, Verdict
from autofit_workers.trials import door
from tests.autofit.conftest import EXACT
from tests.autofit.timed import MEASURED_TIMES, UNMEASURED_TIMES

GIB = 2**30
BUDGET_BYTES = 4 * GIB
NET = """
import torch
from autofit_workers.workload import Workload

def build():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3, padding=1),
        torch.nn.ReLU(), torch.nn.Conv2d(128, 128, 3, padding=1),
    )

net = Workload(build_model=build, optimizer="sgd", loss=lambda model, batch: model(batch).square().mean(),
               make_batch=lambda size, device: torch.ones(size, 3, 64, 64, device=device))
"""
CUDNN, BENCHMARK, NATIVE = (Knobs(conv_algo=name) for name in ("cudnn", "cudnn-benchmark", "native"))
SETTINGS = (CUDNN, BENCHMARK, NATIVE)


# ── a real model ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def predictor_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TimeResiduals], Predictor]:
    """Predictors of a small model of convolutions, by how sure its times are; all share its traces."""
    file = tmp_path_factory.mktemp("net") / "net.py"
    file.write_text(NET)
    traced: dict[int, TrialOutcome] = {}

    def run_once(spec: TrialSpec) -> TrialOutcome:
        if spec.batch_size not in traced:
            traced[spec.batch_size] = door.run(spec)
        return traced[spec.batch_size]

    return lambda residuals: Predictor(
        refer(f"{file}:net"), run_once, residuals=EXACT, time_residuals=residuals, plans=FormulaPlans
    )


@pytest.fixture
def speeds_with(
    predictor_with: Any,
) -> Callable[..., tuple[PredictedSpeeds, dict[Knobs, PredictedCurve]]]:
    """The speeds of all settings under a budget, each up to its largest batch, and their curves."""

    def make(
        residuals: TimeResiduals = MEASURED_TIMES, budget_bytes: int = BUDGET_BYTES
    ) -> tuple[PredictedSpeeds, dict[Knobs, PredictedCurve]]:
        predictor = predictor_with(residuals)
        curves = {knobs: predictor.curve(knobs, card_named("rtx-3090")) for knobs in SETTINGS}
        boundaries = {}
        for knobs, curve in curves.items():
            found = largest_fitting_batch(curve, budget_bytes, max_batch=2000)
            boundaries[knobs] = Boundary(budget_bytes=budget_bytes, max_batch=2000, prior=curve)
            for size, fits in ((found.largest_batch, True), (found.first_failing_batch, False)):
                if size is not None:
                    boundaries[knobs].observe(size, fits=fits)
        return PredictedSpeeds(curves, boundaries, budget_bytes=budget_bytes), curves

    return make


def rates_of(curves: dict[Knobs, PredictedCurve], budget_bytes: int = BUDGET_BYTES) -> dict[Any, float]:
    """The rate of every size that fits and that halving leads to, from the largest."""
    rates = {}
    for knobs, curve in curves.items():
        size = largest_fitting_batch(curve, budget_bytes, max_batch=2000).largest_batch or 0
        while size:
            time = curve.step_time(size)
            assert time is not None
            rates[knobs, size] = time.samples_per_second
            size //= 2
    return rates


def test_a_configuration_has_the_time_of_its_curve_and_another_setting_none(speeds_with: Any) -> None:
    speeds, curves = speeds_with()
    assert speeds.at((CUDNN, 8)) == curves[CUDNN].step_time(8)
    assert speeds.at((Knobs(precision="bf16"), 8)) is None
    assert speeds.any_known


def test_settings_are_held_against_the_fastest_at_their_largest_batches(speeds_with: Any) -> None:
    speeds, curves = speeds_with()
    largest = {
        knobs: curve.step_time(largest_fitting_batch(curve, BUDGET_BYTES, max_batch=2000).largest_batch)
        for knobs, curve in curves.items()
    }
    best = max(time.samples_per_second for time in largest.values())
    for knobs, time in largest.items():
        assert speeds.relative(knobs) == pytest.approx(best / time.samples_per_second)
    assert speeds.relative(NATIVE) > speeds.relative(CUDNN) >= 1.0


def test_the_fastest_and_the_knee_are_the_largest_and_the_smallest_of_what_is_near_the_best(
    speeds_with: Any,
) -> None:
    speeds, curves = speeds_with()
    rates = rates_of(curves)
    best = max(rates.values())
    fastest, knee = speeds.fastest(only_stated=False), speeds.knee()
    assert fastest is not None
    assert rates[fastest.knobs, fastest.batch_size] == fastest.rate >= EQUALLY_FAST_RATE * best
    assert fastest.batch_size == max(
        size for (_, size), rate in rates.items() if rate >= EQUALLY_FAST_RATE * best
    )
    assert knee is not None
    stated = {key: rate for key, rate in rates.items() if key[0] != NATIVE}  # which nothing was timed of
    assert knee.best_samples_per_second == max(stated.values())
    assert knee.batch_size == min(
        size for (_, size), rate in stated.items() if rate >= NEAR_THE_BEST_RATE * max(stated.values())
    )
    assert knee.batch_size < fastest.batch_size


def test_a_smaller_budget_leaves_smaller_sizes(speeds_with: Any) -> None:
    for budget_gib in (1, 2, 3):
        speeds, curves = speeds_with(budget_bytes=budget_gib * GIB)
        fastest = speeds.fastest(only_stated=False)
        assert fastest is not None
        verdict = curves[fastest.knobs].verdict(fastest.batch_size, budget_gib * GIB)
        assert verdict is Verdict.FITS


def test_where_nothing_fits_nothing_is_known(speeds_with: Any) -> None:
    speeds, _ = speeds_with(budget_bytes=2**20)
    assert not speeds.any_known
    assert (speeds.fastest(only_stated=False), speeds.knee(), speeds.relative(CUDNN)) == (None, None, None)


def test_without_rows_behind_times_there_is_an_order_and_no_knee(speeds_with: Any) -> None:
    speeds, _ = speeds_with(UNMEASURED_TIMES)
    assert (speeds.fastest(only_stated=True), speeds.knee()) == (None, None)
    assert speeds.fastest(only_stated=False) is not None
    assert speeds.relative(NATIVE) > 1.0


# ── made-up curves ──────────────────────────────────────────────────────────────────────────────


class MadeUpCurve:
    """A setting whose rate is a function of the batch.

    Attributes:
        asked: the sizes whose time was asked for.
    """

    def __init__(
        self,
        rate: Callable[[int], float],
        *,
        needs_traces: bool = False,
        fails_at: tuple[int, ...] = (),
        is_stated: bool = True,
    ) -> None:
        self._confidence = Confidence(
            sigma=0.1, known_share=1.0, unmeasured=(), is_card_measured=True, is_stated=is_stated
        )
        self._rate = rate
        self._fails_at = fails_at
        self.needs_traces = needs_traces
        self.asked: list[int] = []

    def step_time(self, batch_size: int, _budget_bytes: int) -> StepTime:
        self.asked.append(batch_size)
        seconds = batch_size / self._rate(batch_size)
        return StepTime(
            likely_seconds=seconds, samples=batch_size, confidence=self._confidence, unscaled_seconds=seconds
        )

    def verdict(self, batch_size: int, _budget_bytes: int) -> Verdict:
        return Verdict.OOM if batch_size in self._fails_at else Verdict.FITS


def speeds_of(*curves: MadeUpCurve, largest: int = 64) -> PredictedSpeeds:
    boundaries = {}
    for knobs, _ in zip(SETTINGS, curves, strict=False):
        boundaries[knobs] = Boundary(budget_bytes=GIB, max_batch=largest)
        boundaries[knobs].observe(largest, fits=True)
    by_knobs: Any = dict(zip(SETTINGS, curves, strict=False))
    return PredictedSpeeds(by_knobs, boundaries, budget_bytes=GIB)


@pytest.mark.parametrize(
    ("faster_by", "batch_size"), [(1.0, 64), (1.001, 64), (1.019, 64), (1.03, 32), (1.5, 32)]
)
def test_a_half_that_is_hardly_faster_is_no_reason_for_a_smaller_batch(
    faster_by: float, batch_size: int
) -> None:
    curve = MadeUpCurve(lambda size: 100 * faster_by if size == 32 else 100)
    fastest = speeds_of(curve).fastest(only_stated=True)
    assert fastest is not None
    assert fastest.batch_size == batch_size


def test_of_settings_that_are_equally_fast_the_larger_batch_is_taken_and_of_those_the_faster() -> None:
    fastest = speeds_of(MadeUpCurve(lambda _: 100), MadeUpCurve(lambda _: 101)).fastest(only_stated=True)
    assert fastest is not None
    assert (fastest.knobs, fastest.batch_size) == (BENCHMARK, 64)


def test_a_half_that_does_not_fit_is_neither_the_fastest_nor_the_knee() -> None:
    """The allocator may place the blocks of a smaller batch worse."""
    curve = MadeUpCurve(lambda size: 150 if size <= 32 else 100, fails_at=(32,))
    speeds = speeds_of(curve)
    fastest, knee = speeds.fastest(only_stated=True), speeds.knee()
    assert fastest is not None
    assert fastest.batch_size == 16
    assert knee is not None
    assert knee.batch_size == 1
    unfit = MadeUpCurve(lambda size: 150 if size <= 32 else 100, fails_at=(1, 2, 4, 8, 16, 32))
    only = speeds_of(unfit)
    assert (only.fastest(only_stated=True).batch_size, only.knee().batch_size) == (64, 64)  # type: ignore[union-attr]


def test_of_a_setting_whose_time_is_not_stated_no_smaller_size_is_asked_where_seconds_are_wanted() -> None:
    unsure = MadeUpCurve(lambda _: 100, is_stated=False)
    speeds = speeds_of(MadeUpCurve(lambda _: 100), unsure)
    assert speeds.fastest(only_stated=True) is not None
    assert set(unsure.asked) == {64}
    assert speeds.fastest(only_stated=False) is not None
    assert set(unsure.asked) == {64, 32, 16, 8, 4, 2, 1}


def test_smaller_sizes_are_not_looked_at_where_they_are_slow_or_cost_a_trace() -> None:
    fast, slow = MadeUpCurve(lambda _: 100), MadeUpCurve(lambda _: 50)
    assert speeds_of(fast, slow).fastest(only_stated=True) is not None
    assert (set(fast.asked), set(slow.asked)) == ({64, 32, 16, 8, 4, 2, 1}, {64})
    falling = MadeUpCurve(lambda size: size)
    assert speeds_of(falling).knee() is not None
    assert set(falling.asked) == {64, 32}
    costly = MadeUpCurve(lambda _: 100, needs_traces=True)
    assert speeds_of(costly).fastest(only_stated=True) is not None
    assert set(costly.asked) == {64}
