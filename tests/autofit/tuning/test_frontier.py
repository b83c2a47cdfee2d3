"""The frontier: the largest batch of each setting, why not one more, and the best of all."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import pytest

from autofit.events import ignore
from autofit.hardware.card import card_named
from autofit.predict.confidence import Residuals
from autofit.predict.curve import PredictedCurve
from autofit.predict.predictor import Predictor
from autofit.search.boundary import Boundary, largest_fitting_batch
from autofit.search.choice import RecommendedBy, decisive
from autofit.settings.goals import Objective, Risk
from autofit.tuning.alternatives import with_risks
from autofit.tuning.frontier import Cap, Frontier
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.time.interval import TimeResiduals
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict
from autofit_workers.spec.setup import ALONE, Parallel
from tests.autofit.timed import MEASURED_TIMES, UNMEASURED_TIMES, timed_trace
from tests.workers.replay.plan_tables import MadeUpPlans

MIB = 1024**2
BUDGET_BYTES = 512 * MIB
CUDNN, BENCHMARK, NATIVE = (Knobs(conv_algo=name) for name in ("cudnn", "cudnn-benchmark", "native"))
FITS, OOM, THRASH = Verdict.FITS, Verdict.OOM, Verdict.THRASH


def measured(batch_size: int, verdict: Verdict, peak_mib: int | None = None, **changes: Any) -> TrialOutcome:
    reserved_bytes = None if peak_mib is None else peak_mib * MIB
    outcome = TrialOutcome(
        verdict=verdict,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="real card"),
        batch_size=batch_size,
        knobs=CUDNN,
        steady=Peaks(reserved_bytes=reserved_bytes),
    )
    return dataclasses.replace(outcome, **changes)


class Rising:
    """A prediction that leaves no doubt of sizes beyond one that failed."""

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        return batch_size

    lower_bound_bytes = peak_reserved_bytes


def frontier_of(
    *outcomes: TrialOutcome,
    max_batch: int = 300,
    curves: dict[Knobs, PredictedCurve] | None = None,
    stopped_by: str | None = None,
    caps: dict[Knobs, Cap] | None = None,
    parallel: Parallel = ALONE.parallel,
    objective: Objective = Objective.BATCH,
) -> Frontier:
    """The frontier of a study that holds these outcomes."""
    boundaries = {
        knobs: Boundary(budget_bytes=BUDGET_BYTES, max_batch=max_batch, prior=Rising())
        for knobs in dict.fromkeys(outcome.knobs for outcome in outcomes)
    }
    for outcome in outcomes:
        if outcome.verdict.is_about_memory:
            boundaries[outcome.knobs].observe(outcome.batch_size, fits=outcome.verdict is FITS)
    return Frontier(
        boundaries=boundaries,
        known=decisive(outcomes),
        curves=curves or {},
        budget_bytes=BUDGET_BYTES,
        stopped_by=stopped_by,
        caps=caps,
        parallel=parallel,
        objective=objective,
    )


@pytest.fixture
def predicted() -> Callable[[PredictedCurve, int], TrialOutcome]:
    return lambda curve, batch_size: curve.outcome(batch_size, BUDGET_BYTES)


@pytest.mark.parametrize("seed", range(50))
def test_the_next_larger_size_is_known_to_fail_whatever_the_peaks_do(seed: int) -> None:
    """Reserved memory jumps by up to 300 MiB between neighbouring sizes here."""
    rng = random.Random(seed)
    peaks_mib = {batch_size: 3 * batch_size + rng.randrange(300) for batch_size in range(1, 301)}
    boundary = Boundary(budget_bytes=BUDGET_BYTES, max_batch=300)
    outcomes: dict[int, TrialOutcome] = {}
    while (size := boundary.propose()) is not None:
        verdict = FITS if peaks_mib[size] <= 512 else OOM
        outcomes[size] = measured(size, verdict, peaks_mib[size])
        boundary.observe(size, fits=verdict is FITS, peak_bytes=peaks_mib[size] * MIB)
    frontier = Frontier(
        boundaries={CUDNN: boundary}, known=decisive(outcomes.values()), curves={}, budget_bytes=BUDGET_BYTES
    )
    (entry,) = frontier.entries()
    assert entry.largest_batch is not None
    assert entry.first_failing_batch == entry.largest_batch + 1
    assert outcomes[entry.largest_batch].verdict is FITS
    assert outcomes[entry.first_failing_batch].verdict is OOM
    assert f"batch {entry.first_failing_batch} ran with" in entry.reason


@pytest.mark.parametrize(("is_refused", "failing"), [(True, 9), (False, None)])
def test_a_cap_of_a_setting_gives_its_own_reason(is_refused: bool, failing: int | None) -> None:
    caps = {CUDNN: Cap("no larger one is of interest", is_refused=is_refused)}
    (entry,) = frontier_of(measured(8, FITS, 260), max_batch=8, caps=caps).entries()
    assert (entry.largest_batch, entry.first_failing_batch) == (8, failing)
    assert entry.reason == "no larger one is of interest"


def test_a_cap_that_fits_has_no_failing_size_and_says_so() -> None:
    (entry,) = frontier_of(measured(8, FITS, 260), max_batch=8).entries()
    assert (entry.largest_batch, entry.first_failing_batch) == (8, None)
    assert entry.reason == "it is the largest that --max-batch allows"


@pytest.mark.parametrize(("parallel", "num_samples"), [("fsdp:4", 32), ("pp:4", 32), ("pp:2+gpipe+6", 48)])
def test_a_step_has_the_batches_of_all_ranks_and_all_microbatches(parallel: str, num_samples: int) -> None:
    frontier = frontier_of(measured(8, FITS, 260), max_batch=8, parallel=Parallel.parse(parallel))
    (entry,), best = frontier.entries(), frontier.best()
    assert best is not None
    assert (entry.samples_per_step, best.samples_per_step) == (num_samples, num_samples)


def test_a_setting_whose_boundary_is_still_open_has_no_entry() -> None:
    frontier = frontier_of(measured(8, FITS, 260), measured(16, OOM))
    assert frontier.entries() == ()


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        (
            [measured(8, FITS, 260), measured(16, OOM)],
            "stopped by --max-trials before the boundary was known: it lies between 8 and 16; "
            "batch 16 was run and ran out of memory",
        ),
        (
            [measured(8, FITS, 260)],
            "stopped by --max-trials before the boundary was known: batches above 8 were not tried",
        ),
        (
            [measured(16, OOM)],
            "stopped by --max-trials before the boundary was known: batch 16 was run and ran out of memory, "
            "and smaller batches were not tried",
        ),
    ],
)
def test_a_search_that_was_stopped_says_where_the_boundary_is_open(
    outcomes: list[TrialOutcome], reason: str
) -> None:
    frontier = frontier_of(*outcomes, stopped_by="--max-trials")
    (entry,) = frontier.entries()
    assert (entry.is_settled, entry.reason) == (False, reason)
    assert "--max-trials" in frontier.notes()[0]


def test_an_entry_that_was_measured_has_its_times_and_how_far_the_prediction_was_off(make_curve: Any) -> None:
    curve = make_curve()
    outcomes = [
        measured(18, FITS, 500, step_seconds=0.5),
        measured(19, OOM),
    ]
    (entry,) = frontier_of(*outcomes, curves={CUDNN: curve}).entries()
    assert (entry.step_seconds, entry.samples_per_second) == (0.5, 36.0)
    assert entry.predicted_bytes == curve(18).interval.likely_bytes == 460 * MIB
    assert entry.prediction_error == pytest.approx(-0.08)


def test_where_not_even_the_smallest_size_fits_there_is_no_best_and_the_reason_is_told() -> None:
    frontier = frontier_of(measured(1, OOM))
    (entry,) = frontier.entries()
    assert (entry.largest_batch, entry.first_failing_batch) == (None, 1)
    assert (entry.peak_reserved_bytes, entry.device_peak_bytes) == (None, None)
    assert entry.reason == "batch 1 was run and ran out of memory"
    assert frontier.best() is None


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (measured(9, OOM), "batch 9 was run and ran out of memory"),
        (measured(9, OOM, 300), "batch 9 was run and ran out of memory"),
        (measured(9, OOM, 600), "batch 9 ran with 600.00 MiB of reserved memory, 88.00 MiB over the budget"),
        (
            measured(9, THRASH, 600, num_alloc_retries=3),
            "batch 9 ran only after 3 retries of the allocator",
        ),
        (
            measured(9, OOM, device=Device(kind="cpu", name="a cpu"), steady=Peaks(device_bytes=513 * MIB)),
            "batch 9 ran with 513.00 MiB of memory, 1.00 MiB over the budget",
        ),
    ],
)
def test_the_reason_says_how_a_measured_size_failed(outcome: TrialOutcome, reason: str) -> None:
    (entry,) = frontier_of(measured(8, FITS, 500), outcome).entries()
    assert entry.reason == reason


def test_the_reason_says_that_a_size_was_only_predicted_to_fail(make_curve: Any, predicted: Any) -> None:
    curve = make_curve()
    frontier = frontier_of(predicted(curve, 20), predicted(curve, 21), curves={CUDNN: curve})
    (entry,) = frontier.entries()
    assert entry.reason == "batch 21 is predicted to reserve up to 520.00 MiB, 8.00 MiB over the budget"
    assert entry.evidence is Evidence.PREDICTED


def test_a_size_that_fitted_and_failed_in_turn_counts_as_failing() -> None:
    frontier = frontier_of(measured(8, OOM, 600), measured(7, FITS, 400), measured(8, FITS, 500))
    (entry,) = frontier.entries()
    assert (entry.largest_batch, entry.first_failing_batch) == (7, 8)
    assert entry.reason.startswith("batch 8 ran with 600.00 MiB")


def test_a_trial_that_was_lost_hides_no_outcome() -> None:
    frontier = frontier_of(measured(8, FITS, 500), measured(9, OOM), measured(8, Verdict.LOST))
    best = frontier.best()
    assert best is not None
    assert (best.batch_size, best.peak_reserved_bytes) == (8, 500 * MIB)


def settled_at(knobs: Knobs, batch_size: int, step_seconds: float | None) -> list[TrialOutcome]:
    return [
        measured(batch_size, FITS, 500, knobs=knobs, step_seconds=step_seconds),
        measured(batch_size + 1, OOM, knobs=knobs),
    ]


@pytest.mark.parametrize(
    ("cudnn", "native", "best"),
    [
        ((8, 0.5), (9, 5.0), NATIVE),
        ((9, 5.0), (8, 0.5), CUDNN),
        ((8, 0.5), (8, 0.4), NATIVE),
        ((8, 0.5), (8, 0.5), CUDNN),
        ((8, None), (8, None), CUDNN),
    ],
    ids=["larger", "larger though slower", "equal but faster", "equal", "equal and not timed"],
)
def test_the_best_is_the_largest_then_the_fastest_then_the_first_policy(
    cudnn: tuple[int, float | None], native: tuple[int, float | None], best: Knobs
) -> None:
    for outcomes in (
        settled_at(CUDNN, *cudnn) + settled_at(NATIVE, *native),
        settled_at(NATIVE, *native) + settled_at(CUDNN, *cudnn),
    ):
        found = frontier_of(*outcomes).best()
        assert found is not None
        assert found.knobs == best


@pytest.mark.parametrize(
    ("cudnn", "native", "default_algo", "recommended", "by"),
    [
        ((8, None), (9, None), "cudnn", CUDNN, "default-backend"),
        ((8, 0.5), (9, 5.0), "cudnn", CUDNN, "default-backend"),
        ((8, 0.5), (9, 0.5), "cudnn", NATIVE, "measured-rate"),
        ((9, None), (8, None), "cudnn", CUDNN, "default-backend"),
        ((8, None), (9, None), None, NATIVE, "conv-algo"),
        ((None, None), (9, None), "cudnn", NATIVE, "only-fit"),
        (None, (9, None), "cudnn", NATIVE, "largest"),
    ],
    ids=[
        "the default",
        "the default though a slower one fits more",
        "one that fits more and is faster",
        "the default that is the largest too",
        "what was asked for",
        "what alone fits",
        "what is the only one",
    ],
)
def test_the_default_backend_is_recommended_unless_another_is_no_slower_or_was_asked_for(
    cudnn: Any, native: Any, default_algo: str | None, recommended: Knobs, by: str
) -> None:
    outcomes = []
    for knobs, found in ((CUDNN, cudnn), (NATIVE, native)):
        if found is None:
            continue
        size, seconds = found
        if size is None:
            outcomes.append(measured(1, OOM, knobs=knobs))
            continue
        outcomes += settled_at(knobs, size, seconds)
    frontier = frontier_of(*outcomes)
    chosen = frontier.recommended(default_algo)
    assert chosen is not None
    assert (chosen.knobs, chosen.by) == (recommended, by)
    entry = next(entry for entry in frontier.entries() if entry.knobs == recommended)
    assert (chosen.largest_batch, chosen.first_failing_batch) == (
        entry.largest_batch,
        entry.first_failing_batch,
    )


def test_the_best_of_a_measurement_has_its_times_and_the_interval_of_the_prediction(make_curve: Any) -> None:
    curve = make_curve()
    outcomes = settled_at(CUDNN, 20, step_seconds=0.5)
    best = frontier_of(*outcomes, curves={CUDNN: curve}).best()
    assert best is not None
    assert (best.step_seconds, best.samples_per_second) == (0.5, 40.0)
    assert best.interval == curve(20).interval
    assert best.peak_reserved_bytes == outcomes[0].peaks.reserved_bytes


def test_of_a_prediction_entry_and_best_show_the_likely_peak_and_the_reason_the_high_one(
    make_curve: Any, predicted: Any
) -> None:
    curve = make_curve()
    doubtful = predicted(curve, 20)
    doubtful = dataclasses.replace(doubtful, steady=Peaks(1, doubtful.peaks.reserved_bytes + 8 * MIB, 1))
    frontier = frontier_of(doubtful, predicted(curve, 21), curves={CUDNN: curve})
    (entry,), best, likely = frontier.entries(), frontier.best(), curve(20)
    assert best is not None
    assert entry.peak_reserved_bytes == best.peak_reserved_bytes == likely.peak_reserved_bytes
    assert entry.device_peak_bytes == best.device_peak_bytes == likely.device_peak_bytes
    assert best.peak_allocated_bytes == likely.peak_allocated_bytes


def test_sizes_that_would_run_with_retries_are_shown_up_to_the_largest(
    make_curve: Any, predicted: Any
) -> None:
    """Beside a freed scratch 13 samples fit; released under the limit, it lets 20 run."""
    curve = make_curve(scratch_mib_per_sample=11)
    verdicts = [predicted(curve, batch_size).verdict for batch_size in (13, 14, 20, 21)]
    assert verdicts == [FITS, THRASH, THRASH, OOM]
    frontier = frontier_of(predicted(curve, 13), predicted(curve, 14), curves={CUDNN: curve})
    (entry,) = frontier.entries()
    assert entry.largest_thrashing_batch == 20


def test_where_nothing_runs_with_retries_nothing_is_said_of_it(make_curve: Any, predicted: Any) -> None:
    curve = make_curve()
    frontier = frontier_of(predicted(curve, 20), predicted(curve, 21), curves={CUDNN: curve})
    assert frontier.entries()[0].largest_thrashing_batch is None


def test_a_measurement_that_the_prediction_contradicts_says_nothing_of_retries(make_curve: Any) -> None:
    curve = make_curve(scratch_mib_per_sample=11)
    frontier = frontier_of(measured(8, FITS, 400), measured(9, OOM), curves={CUDNN: curve})
    assert frontier.entries()[0].largest_thrashing_batch is None


def test_a_curve_that_costs_a_trace_a_size_is_not_asked_for_retries(
    worker: Any, make_trace: Any, card: Any, workload: Any, exact: Any
) -> None:
    worker.trace_at = lambda batch_size: make_trace(
        batch_size, scratch_mib_per_sample=11, num_extra=batch_size % 5
    )
    curve = Predictor(workload, worker, residuals=exact).curve(CUDNN, card)
    outcomes = [curve.outcome(batch_size, BUDGET_BYTES) for batch_size in (13, 14)]
    num_traces = len(worker.specs)
    frontier = frontier_of(*outcomes, curves={CUDNN: curve})
    assert frontier.entries()[0].largest_thrashing_batch is None
    assert len(worker.specs) == num_traces


@pytest.mark.parametrize(
    ("risk", "said"),
    [
        (Risk.SAFE, "batch 21 is predicted to reserve up to 520.00 MiB"),
        (Risk.LIKELY, "batch 21 is likely to reserve 520.00 MiB"),
        (Risk.WORST, "batch 21 is predicted to reserve, at worst, 520.00 MiB"),
    ],
)
def test_the_reason_says_at_which_risk_a_size_does_not_fit(
    make_curve: Any, predicted: Any, risk: Risk, said: str
) -> None:
    curve = make_curve(risk=risk)
    frontier = frontier_of(predicted(curve, 20), predicted(curve, 21), curves={CUDNN: curve})
    assert frontier.entry(CUDNN).reason == f"{said}, 8.00 MiB over the budget"


def at_every_risk(frontier: Frontier, curve: PredictedCurve) -> dict[Risk, int | None] | None:
    (entry,) = with_risks(
        frontier.entries(),
        {CUDNN: curve},
        budget_bytes=BUDGET_BYTES,
        sizes=lambda _knobs: range(1, 301),
        emit=ignore,
    )
    return entry.largest_by_risk


def test_a_predicted_entry_has_its_largest_batch_at_every_risk(make_curve: Any, predicted: Any) -> None:
    off = Residuals(measured={}, factor=1.0, extra_share=0.2)
    source = MadeUpPlans(lambda call: tuple(Plan(1, mib * MIB * call.input_shape[0]) for mib in (2, 4)))
    curve = make_curve(num_channels=32, mib_per_sample=1, residuals=off, plans=lambda _architecture: source)
    scan = {
        risk: largest_fitting_batch(curve.at_risk(risk), BUDGET_BYTES, max_batch=300).largest_batch
        for risk in Risk
    }
    safe, likely, worst = (scan[risk] or 0 for risk in (Risk.SAFE, Risk.LIKELY, Risk.WORST))
    assert 0 < worst < safe < likely
    frontier = frontier_of(predicted(curve, safe), predicted(curve, safe + 1), curves={CUDNN: curve})
    assert at_every_risk(frontier, curve) == scan


def test_what_was_measured_is_no_matter_of_risk(make_curve: Any) -> None:
    frontier = frontier_of(measured(8, FITS, 500), measured(9, OOM))
    assert at_every_risk(frontier, make_curve()) is None


def test_the_best_says_what_the_workspaces_may_come_to(make_curve: Any, predicted: Any) -> None:
    curve = make_curve(num_channels=256, mib_per_sample=1)
    best = frontier_of(predicted(curve, 8), predicted(curve, 9), curves={CUDNN: curve}).best()
    assert best is not None
    assert best.workspace_bytes == curve(best.batch_size).workspace_bytes is not None


# ── predicted times ─────────────────────────────────────────────────────────────────────────────


def timed_curve(
    workload: Any,
    worker: Any,
    knobs: Knobs = CUDNN,
    *,
    residuals: TimeResiduals = MEASURED_TIMES,
    num_calls: int = 20,
) -> PredictedCurve:
    """A curve whose steps have a predicted time."""
    worker.trace_at = functools.partial(timed_trace, num_calls=num_calls)
    predictor = Predictor(workload, worker, time_residuals=residuals, plans=MadeUpPlans)
    return predictor.curve(knobs, card_named("rtx-3090"))


def predicted_frontier(
    *curves: PredictedCurve, objective: Objective = Objective.BATCH, largest: int = 16
) -> Frontier:
    boundaries = {
        curve.knobs: Boundary(budget_bytes=BUDGET_BYTES, max_batch=300, prior=Rising()) for curve in curves
    }
    known = {}
    for curve in curves:
        for size, fits in ((largest, True), (largest + 1, False)):
            boundaries[curve.knobs].observe(size, fits=fits)
            outcome = curve.outcome(size, BUDGET_BYTES)
            known[curve.knobs, size] = dataclasses.replace(outcome, verdict=FITS if fits else OOM)
    return Frontier(
        boundaries=boundaries,
        known=known,
        curves={curve.knobs: curve for curve in curves},
        budget_bytes=BUDGET_BYTES,
        objective=objective,
    )


def test_stated_times_decide_what_is_recommended_and_the_largest_stays_the_best(
    workload: Any, worker: Any
) -> None:
    frontier = predicted_frontier(timed_curve(workload, worker))
    best, recommended, (entry,) = frontier.best(), frontier.recommended("cudnn"), frontier.entries()
    assert best is not None
    assert best.batch_size == 16
    assert recommended is not None
    assert recommended.by is RecommendedBy.PREDICTED_RATE
    seconds = entry.predicted_step_seconds
    assert seconds is not None
    assert entry.predicted_samples_per_second == pytest.approx(16 / seconds.likely)
    assert (entry.step_seconds, entry.samples_per_second) == (None, None)
    assert recommended.predicted_samples_per_second is not None
    assert recommended.predicted_samples_per_second >= entry.predicted_samples_per_second


def test_the_predicted_knee_is_the_smallest_size_near_the_best_rate(workload: Any, worker: Any) -> None:
    curve = timed_curve(workload, worker)
    knee = predicted_frontier(curve).knee()
    assert knee is not None
    assert knee.is_predicted
    rates = dict.fromkeys((1, 2, 4, 8, 16), 0.0)
    for size in rates:
        time = curve.step_time(size)
        assert time is not None
        rates[size] = time.samples_per_second
    assert knee.batch_size == min(
        size for size, found in rates.items() if found >= 0.95 * max(rates.values())
    )
    assert knee.best_samples_per_second == pytest.approx(max(rates.values()))


def test_a_setting_whose_time_is_not_stated_is_not_recommended_for_it(workload: Any, worker: Any) -> None:
    stated = timed_curve(workload, worker)
    faster = timed_curve(workload, worker, BENCHMARK, residuals=UNMEASURED_TIMES, num_calls=5)
    frontier = predicted_frontier(stated, faster)
    slow, fast = frontier.entries()
    assert slow.relative_sample_time is not None
    assert slow.relative_sample_time > 2
    assert (fast.relative_sample_time, fast.predicted_step_seconds) == (1.0, None)
    recommended = frontier.recommended("cudnn")
    assert recommended is not None
    assert (recommended.knobs, recommended.by) == (CUDNN, RecommendedBy.PREDICTED_RATE)


def test_without_rows_behind_times_no_seconds_are_said_and_the_earlier_rule_stands(
    workload: Any, worker: Any
) -> None:
    frontier = predicted_frontier(timed_curve(workload, worker, residuals=UNMEASURED_TIMES))
    (entry,), recommended = frontier.entries(), frontier.recommended("cudnn")
    assert (entry.predicted_step_seconds, entry.predicted_samples_per_second) == (None, None)
    assert entry.relative_sample_time == 1.0
    assert recommended is not None
    assert recommended.by is RecommendedBy.LARGEST
    assert frontier.knee() is None


def test_for_throughput_the_order_of_predicted_times_decides_where_nothing_was_timed(
    workload: Any, worker: Any
) -> None:
    curve = timed_curve(workload, worker, residuals=UNMEASURED_TIMES)
    frontier = predicted_frontier(curve, objective=Objective.THROUGHPUT)
    best, recommended = frontier.best(), frontier.recommended("cudnn")
    assert best is not None
    assert recommended is not None
    assert recommended.by is RecommendedBy.OBJECTIVE
    assert best.predicted_step_seconds is None
    sizes = (16, 8, 4, 2, 1)
    times = {size: curve.step_time(size) for size in sizes}
    assert best.batch_size == max(sizes, key=lambda size: (times[size].samples_per_second, size))


def test_for_throughput_the_largest_batch_is_the_best_where_no_time_is_known_and_the_notes_say_so(
    make_curve: Any, predicted: Any
) -> None:
    curve = make_curve()
    assert curve.why_untimed is not None
    outcomes = predicted(curve, 20), predicted(curve, 21)
    frontier = frontier_of(*outcomes, curves={CUDNN: curve}, objective=Objective.THROUGHPUT)
    best = frontier.best()
    assert best is not None
    assert best.batch_size == 20
    (note,) = frontier.notes()
    assert "no step time is predicted, so the best is the largest batch" in note
    assert frontier_of(*outcomes, curves={CUDNN: curve}).notes() == ()


def test_measured_times_count_more_than_predicted_ones_and_say_how_far_those_were_off(
    workload: Any, worker: Any
) -> None:
    curve = timed_curve(workload, worker)
    time = curve.step_time(8)
    assert time is not None
    outcome = measured(8, FITS, 260, step_seconds=2 * time.likely_seconds)
    (entry,) = frontier_of(outcome, max_batch=8, curves={CUDNN: curve}).entries()
    assert entry.step_seconds == outcome.step_seconds
    assert entry.step_time_error == pytest.approx(-0.5)
    recommended = frontier_of(outcome, max_batch=8, curves={CUDNN: curve}).recommended("cudnn")
    assert recommended is not None
    assert recommended.by is RecommendedBy.LARGEST
