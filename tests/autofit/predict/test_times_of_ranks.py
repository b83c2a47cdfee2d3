"""Times of one of several ranks: what they exchange, and what is not known of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autofit.hardware.card import Card, card_named
from autofit.predict.intervals.observations import card_key
from autofit.predict.predictor import Predictor
from autofit.predict.times.measured_steps import MeasuredStep, MeasuredSteps
from autofit.predict.times.step_times import StepTime, why_untimed
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.replay.time.interval import Residual, TimeResiduals
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialOutcome, TrialSpec, WorkloadRef
from autofit_workers.spec.setup import Parallel, Setup
from autofit_workers.spec.trace import AlikeRanks, Trace
from autofit_workers.spec.work import Group, Operand, Work, WorkCall
from autofit_workers.trials import door
from tests.autofit.timed import MEASURED_TIMES, timed_trace

A100, RTX_3090 = card_named("a100-80g"), card_named("rtx-3090")
KNOBS = Knobs()
WORKLOADS = Path(__file__).parents[2] / "workers" / "tracing" / "small_workloads.py"
LARGE = 2**20
# Of everything real runs are known but of collectives.
ALL_BUT_COLLECTIVES = dataclasses.replace(
    MEASURED_TIMES,
    classes={**MEASURED_TIMES.classes, "collective": Residual(sigma=0.7)},
    cards={"sm_80": Residual(sigma=0.1, num_rows=50), **MEASURED_TIMES.cards},
)


def trace_of_ranks(
    batch_size: int, num_elements: int, *, parallel: str = "ddp:2", operator: str = "c10d.allreduce_"
) -> Trace:
    """The step of `timed_trace` that ends with a collective."""
    trace, ranks = timed_trace(batch_size), Parallel.parse(parallel)
    operand = Operand((num_elements,), "float32")
    work = Work(operator, (operand,), (operand,), group=Group(ranks.num_ranks))
    calls = (*trace.work, WorkCall(work, "", len(trace.work), stream=1024, after=(1,)))
    return dataclasses.replace(
        trace,
        num_ranks=ranks.num_ranks,
        parallel="" if ranks.has_ddp else parallel,
        work=calls if num_elements else trace.work,
    )


def time_of(
    workload: WorkloadRef,
    worker: Any,
    num_elements: int,
    *,
    card: Card = A100,
    residuals: TimeResiduals = ALL_BUT_COLLECTIVES,
    measured: MeasuredSteps | None = None,
    **of_trace: Any,
) -> StepTime | None:
    worker.trace_at = lambda batch_size: trace_of_ranks(batch_size, num_elements, **of_trace)
    predictor = Predictor(
        workload, worker, time_residuals=residuals, measured_steps=measured, plans=FormulaPlans
    )
    return predictor.curve(KNOBS, card).step_time(64)


def test_the_samples_of_all_ranks_count(workload: WorkloadRef, worker: Any) -> None:
    of_ddp = time_of(workload, worker, 1000, parallel="ddp:4")
    of_tp = time_of(workload, worker, 1000, parallel="fsdp:2,tp:2")
    assert of_ddp is not None
    assert of_tp is not None
    assert (of_ddp.samples, of_tp.samples) == (4 * 64, 2 * 64)


def test_operators_of_a_rank_have_no_times_of_their_own(workload: WorkloadRef, worker: Any) -> None:
    worker.trace_at = lambda batch_size: trace_of_ranks(batch_size, 1000)
    predictor = Predictor(workload, worker, time_residuals=ALL_BUT_COLLECTIVES, plans=FormulaPlans)
    profile = predictor.profile(KNOBS, A100, 64)
    assert profile.timing is None
    assert "collectives run beside them" in profile.time_note


def test_what_is_exchanged_takes_its_time(workload: WorkloadRef, worker: Any) -> None:
    small, large = (time_of(workload, worker, num_elements) for num_elements in (1000, 10**9))
    assert small is not None
    assert large is not None
    assert large.relative_to(small) > 1.05
    assert "NVLink in nodes of 8 cards" in large.note


def test_timed_all_reduces_are_behind_the_seconds_of_a_node_that_they_are_of(
    workload: WorkloadRef, worker: Any
) -> None:
    time = time_of(workload, worker, 10**9)
    assert time is not None
    assert time.stated is not None


def test_gathered_tensors_state_seconds_over_links_that_were_timed(
    workload: WorkloadRef, worker: Any
) -> None:
    time = time_of(workload, worker, 4 * 10**9, card=A100, operator="c10d._allgather_base_")
    assert time is not None
    assert time.stated is not None


@pytest.mark.parametrize(
    ("of_trace", "card"),
    [
        ({"operator": "c10d.broadcast_"}, A100),
        ({"parallel": "ddp:16"}, A100),  # on two nodes
        ({}, RTX_3090),  # whose links nobody timed
    ],
)
def test_collectives_without_rows_state_no_seconds_but_an_order(
    of_trace: Any, card: Card, workload: WorkloadRef, worker: Any
) -> None:
    time = time_of(workload, worker, 4 * 10**9, card=card, **of_trace)
    smaller = time_of(workload, worker, 2 * 10**9, card=card, **of_trace)
    assert time is not None
    assert smaller is not None
    assert time.stated is None
    assert "collective" in time.confidence.unmeasured
    assert time.relative_to(smaller) > 1.01


def test_collectives_without_rows_are_no_hindrance_where_they_take_next_to_nothing(
    workload: WorkloadRef, worker: Any
) -> None:
    time = time_of(workload, worker, 1000, card=RTX_3090)
    assert time is not None
    assert time.stated is not None
    assert "PCIe" in time.note


def test_ranks_of_which_no_trace_has_what_they_exchange_have_no_times(
    workload: WorkloadRef, worker: Any
) -> None:
    assert time_of(workload, worker, 0) is None


@pytest.mark.parametrize(
    ("parallel", "why"),
    [
        ("pp:2", "a pipeline"),
        ("fsdp:2,pp:2", "a pipeline"),
        ("fsdp:2+offload", "offloaded"),
        ("zero2:2+offload", "offloaded"),
        ("script:2", "a script's ranks"),
    ],
)
def test_ranks_that_are_not_timed_are_told_why(parallel: str, why: str) -> None:
    told = why_untimed(A100, Parallel.named(parallel))
    assert told is not None
    assert f"times of {why}" in told or f"times of what is {why}" in told
    assert why_untimed(A100, Parallel.parse("fsdp:2,tp:2")) is None


def test_a_measured_step_of_one_process_says_nothing_of_ranks(workload: WorkloadRef, worker: Any) -> None:
    plain = time_of(workload, worker, 1000)
    assert plain is not None
    alone = MeasuredStep(
        workload="w",
        knobs=KNOBS,
        mode="train",
        batch_size=64,
        card=card_key(A100),
        measured_seconds=2.0,
        predicted_seconds=1.0,
        model=plain.model,
    )
    of_ranks = dataclasses.replace(alone, parallel="ddp:2")
    assert alone.id != of_ranks.id
    unscaled = time_of(workload, worker, 1000, measured=MeasuredSteps([alone]))
    scaled = time_of(workload, worker, 1000, measured=MeasuredSteps([of_ranks]))
    assert unscaled == plain
    assert scaled is not None
    assert scaled.likely_seconds == pytest.approx(2 * plain.likely_seconds)


def test_a_step_takes_as_long_as_its_slowest_rank(workload: WorkloadRef, worker: Any) -> None:
    kinds = (AlikeRanks(first=0, num_ranks=1), AlikeRanks(first=1, num_ranks=1))

    def run(spec: TrialSpec) -> TrialOutcome:
        assert spec.setup.rank is not None
        trace = trace_of_ranks(spec.batch_size, 10 ** (3 + 6 * spec.setup.rank), parallel="fsdp:2")
        trace = dataclasses.replace(trace, rank=spec.setup.rank, alike_ranks=kinds)
        return dataclasses.replace(worker(spec), trace_json=trace.to_json())

    both = Predictor(
        workload,
        run,
        setup=Setup(parallel=Parallel.parse("fsdp:2"), rank=None),
        plans=FormulaPlans,
    )
    time = both.curve(KNOBS, A100).step_time(64)
    alone = time_of(workload, worker, 10**9, parallel="fsdp:2")
    assert time is not None
    assert alone is not None
    assert time.likely_seconds == pytest.approx(alone.likely_seconds)


def test_ranks_that_are_traced_here_have_times_at_any_batch() -> None:
    ref = WorkloadRef(kind="file", target=f"{WORKLOADS}:attention")
    times = {}
    for parallel in ("ddp:2", "fsdp:2"):
        setup = Setup(parallel=Parallel.parse(parallel))
        curve = Predictor(ref, door.run, setup=setup, plans=FormulaPlans).curve(KNOBS, A100)
        for batch_size in (8, LARGE):
            time = curve.step_time(batch_size)
            assert time is not None
            assert time.samples == 2 * batch_size
            times[parallel, batch_size] = time
        assert "NVLink" in curve(8).step_time_note
    assert times["ddp:2", LARGE].relative_to(times["ddp:2", 8]) > 2.0
    # A large batch hides what is exchanged; a small one waits for more collectives of FSDP than of DDP.
    assert times["fsdp:2", LARGE].relative_to(times["ddp:2", LARGE]) == pytest.approx(1.0, rel=0.1)
    assert times["fsdp:2", 8].relative_to(times["ddp:2", 8]) > 1.1
