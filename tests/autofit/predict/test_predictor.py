"""Predictions: which curves are made of traces, and what they say on cards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from autofit.answers.words.phrases import assumed_sizes
from autofit.errors import UnpredictableCardError, WorkloadFailedError
from autofit.hardware.card import Card, card_named
from autofit.predict.confidence import Residuals
from autofit.predict.predictor import Predictor
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Evidence
from autofit_workers.spec.trace import (
    COMPILED_STEP,
    MANAGED_MEMORY,
    Allocation,
    Assumption,
    Category,
    Scratch,
    Trace,
)
from tests.workers.replay.plan_tables import of_sizes

MIB = 1024**2
CUDNN, NATIVE = Knobs(conv_algo="cudnn"), Knobs(conv_algo="native")


def loops(make_trace: Any) -> Callable[[int], Trace]:
    """A step that makes a tensor of 32 MiB for every sample of the batch."""
    return lambda batch_size: make_trace(batch_size, num_extra=batch_size)


def test_settings_that_differ_in_the_convolution_policy_alone_share_three_traces(
    predictor: Predictor, worker: Any, card: Card
) -> None:
    for conv_algo in ("cudnn", "cudnn-benchmark", "native"):
        predictor.curve(Knobs(conv_algo=conv_algo), card)
    assert worker.traced == list(TRACED_BATCH_SIZES)
    predictor.curve(Knobs(precision="amp-bf16"), card)
    assert worker.traced == list(TRACED_BATCH_SIZES) * 2


def test_a_card_whose_convolutions_nobody_knows_has_no_curve_of_them(
    predictor: Predictor, worker: Any, make_trace: Any, card: Card
) -> None:
    worker.trace_at = lambda batch_size: make_trace(batch_size, num_channels=16)
    amds, trace = card_named("mi300x"), predictor.trace(CUDNN, 8)
    for ask in (
        lambda: predictor.curve(CUDNN, amds),
        lambda: predictor.curve_at(CUDNN, amds, 8),
        lambda: predictor.curve_of(trace, CUDNN, amds),
    ):
        with pytest.raises(UnpredictableCardError, match="MIOpen"):
            ask()
    curve = predictor.curve(NATIVE, amds)
    assert curve.why_unpredictable_on(amds, 8) is None
    assert curve.conv_cost(8, 10**12) is None
    assert "MIOpen" in str(predictor.curve(CUDNN, card).why_unpredictable_on(amds, 8))


@pytest.mark.parametrize(
    ("operator", "source"),
    [
        (MANAGED_MEMORY, "pages of managed memory"),
        (COMPILED_STEP, "temporaries of the compiled optimizer step"),
    ],
)
def test_what_may_be_on_the_card_or_not_is_an_unknown_of_its_own_from_nothing_to_all(
    predictor: Predictor, worker: Any, make_trace: Any, operator: str, source: str
) -> None:
    def takes_pages(batch_size: int) -> Trace:
        trace = make_trace(batch_size)
        pages = Allocation(
            num_bytes=0,
            category=Category.OPTIMIZER_STATE,
            operator=operator,
            span_bytes=(0, 40 * MIB),
        )
        number = len(trace.allocations)
        return dataclasses.replace(
            trace, allocations=(*trace.allocations, pages), events=(number, *trace.events)
        )

    without = predictor.curve(CUDNN, card_named("h100-80g"))(8)
    worker.trace_at = takes_pages
    curve = predictor.curve(dataclasses.replace(CUDNN, optimizer="adam"), card_named("h100-80g"))
    (unknown,) = curve(8).unknowns
    assert unknown.source == source
    assert unknown.low_bytes == unknown.likely_bytes == without.peak_reserved_bytes
    assert unknown.high_bytes == unknown.likely_bytes + 40 * MIB
    assert curve(8).interval.high_bytes >= unknown.high_bytes


def test_memory_that_other_streams_still_use_is_an_unknown_and_within_the_interval(
    predictor: Predictor, worker: Any, make_trace: Any
) -> None:
    def gathers_twice(batch_size: int) -> Trace:
        trace = make_trace(batch_size)
        gathered = Allocation(num_bytes=4096 * MIB, category=Category.OTHER, stream=1, stream_uses=(0,))
        number = len(trace.allocations)
        return dataclasses.replace(
            trace,
            allocations=(*trace.allocations, gathered, gathered),
            events=(*trace.events, number, ~number, number + 1, ~(number + 1)),
        )

    worker.trace_at = gathers_twice
    estimate = predictor.curve(CUDNN, card_named("h100-80g"))(8)
    (unknown,) = estimate.unknowns
    assert unknown.source == "freed memory that other streams still use"
    assert unknown.high_bytes == unknown.likely_bytes + 4096 * MIB
    assert estimate.interval.high_bytes >= unknown.high_bytes


def test_on_amd_s_cards_the_workspaces_of_products_are_an_unknown_of_their_own(
    predictor: Predictor, worker: Any, make_trace: Any
) -> None:
    def multiplies(batch_size: int) -> Trace:
        trace = make_trace(batch_size)
        workspace = Allocation(
            num_bytes=0,
            category=Category.WORKSPACE,
            correction="cublas",
            scratch=Scratch(formula="cublas", dimensions=(), element_bytes=1),
        )
        number = len(trace.allocations)
        return dataclasses.replace(
            trace, allocations=(*trace.allocations, workspace), events=(number, *trace.events)
        )

    worker.trace_at = multiplies
    assert predictor.curve(CUDNN, card_named("h100-80g"))(8).unknowns == ()
    (unknown,) = predictor.curve(CUDNN, card_named("mi210"))(8).unknowns
    assert unknown.source == "workspaces of hipBLASLt, hipBLAS and AOTriton"
    assert unknown.high_bytes - unknown.likely_bytes == 32 * MIB
    assert unknown.likely_bytes - unknown.low_bytes == 44 * MIB


def test_what_decides_no_event_costs_no_trace(predictor: Predictor, worker: Any, card: Card) -> None:
    for knobs in (
        Knobs(grad_accumulation=2),
        Knobs(grad_accumulation=16, allocator="expandable_segments"),
        Knobs(global_batch=64, allocator="max_split:64"),
    ):
        predictor.estimate(knobs, card, 8)
    assert worker.traced == [8]


def test_a_global_batch_in_one_piece_is_a_step_like_any(
    predictor: Predictor, worker: Any, card: Card
) -> None:
    predictor.curve(Knobs(global_batch=64), card)
    assert worker.traced == list(TRACED_BATCH_SIZES) * 2
    assert [spec.knobs for spec in worker.specs[::3]] == [Knobs(grad_accumulation=2), Knobs()]
    predictor.curve(Knobs(), card)
    predictor.curve(Knobs(grad_accumulation=5), card)
    assert worker.traced == list(TRACED_BATCH_SIZES) * 2


def test_a_curve_needs_no_trace_for_a_further_size_and_equals_the_estimate_there(
    predictor: Predictor, worker: Any, card: Card
) -> None:
    curve = predictor.curve(CUDNN, card)
    for batch_size in (1, 17, 300):
        traced = predictor.estimate(CUDNN, card, batch_size)
        assert dataclasses.replace(curve(batch_size), trace_digest=traced.trace_digest) == traced
    assert not curve.needs_traces
    assert worker.traced == [*TRACED_BATCH_SIZES, 1, 17, 300]


def test_an_estimate_says_what_the_step_needs_and_where_it_goes(predictor: Predictor, card: Card) -> None:
    estimate = predictor.estimate(CUDNN, card, 8)
    assert estimate.peak_allocated_bytes == estimate.peak_reserved_bytes == 260 * MIB
    assert estimate.device_peak_bytes == 260 * MIB + card.context_bytes
    assert (estimate.breakdown.parameters, estimate.breakdown.activations) == (100 * MIB, 160 * MIB)
    assert estimate.evidence is Evidence.PREDICTED
    assert (estimate.device.kind, estimate.device.name) == ("cuda", "a-card")
    assert [(part.module, part.num_bytes) for part in estimate.largest] == [
        ("layer", 160 * MIB),
        ("", 100 * MIB),
    ]


def test_an_assumed_size_is_told_with_the_batch_size_that_it_was_traced_at(
    predictor: Predictor, worker: Any, make_trace: Any, card: Card
) -> None:
    def masks(batch_size: int) -> Trace:
        most = 4096 * batch_size
        assumed = Assumption(site="mask.py:5:loss", what="elements", size=most // 2, largest=most)
        return dataclasses.replace(make_trace(batch_size), assumptions=(assumed,))

    worker.trace_at = masks
    curve, traced = predictor.curve(CUDNN, card), TRACED_BATCH_SIZES[0]
    said = f"elements at mask.py:5:loss: 8,192 assumed of at most 16,384 at batch {traced}"
    assert assumed_sizes(curve(28474)) == (said,)
    assert assumed_sizes(curve(traced)) == (said.removesuffix(f" at batch {traced}"),)
    assert assumed_sizes(predictor.estimate(CUDNN, card, 8)) == (
        "elements at mask.py:5:loss: 16,384 assumed of at most 32,768",
    )


def test_the_same_step_on_another_card_costs_no_trace(predictor: Predictor, worker: Any, card: Card) -> None:
    curve = predictor.curve(CUDNN, card)
    other = curve.on(Card(name="other", architecture="sm_90", context_bytes=640 * MIB))(8)
    assert (other.device.name, other.context_bytes) == ("other", 640 * MIB)
    assert other.peak_reserved_bytes == curve(8).peak_reserved_bytes
    assert worker.traced == list(TRACED_BATCH_SIZES)


def test_a_step_whose_events_depend_on_the_batch_is_traced_at_every_size_once(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any
) -> None:
    worker.trace_at = loops(make_trace)
    curve = predictor.curve(CUDNN, card)
    assert curve.needs_traces
    assert curve(11).peak_allocated_bytes == (100 + 52 * 11) * MIB
    curve.on(card).outcome(11, 512 * MIB)
    assert worker.traced == [*TRACED_BATCH_SIZES, 11]


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_curve_stands_where_a_trace_has_other_events_and_the_same_peak(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any, is_kept: bool
) -> None:
    def from_40_on(batch_size: int) -> Trace:
        trace = make_trace(batch_size, scratch_mib_per_sample=20)
        if batch_size < 40:
            return trace
        number = len(trace.allocations)
        more = dataclasses.replace(trace.allocations[0], num_bytes=64 * MIB, category=Category.OTHER)
        events = (*trace.events[:3], number, *(() if is_kept else (~number,)), *trace.events[3:])
        return dataclasses.replace(trace, allocations=(*trace.allocations, more), events=events)

    worker.trace_at = from_40_on
    predictor.curve(CUDNN, card)
    assert predictor.confirm(CUDNN, card, 39)
    assert predictor.confirm(CUDNN, card, 40) == (not is_kept)
    assert predictor.curve(CUDNN, card).needs_traces == is_kept


@pytest.mark.parametrize("last_that_differs", [1, 2])
def test_a_step_that_differs_at_one_sample_alone_keeps_its_curve_for_all_others(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any, last_that_differs: int
) -> None:
    worker.trace_at = lambda size: make_trace(size, num_extra=2 if size <= last_that_differs else 0)
    before = predictor.curve(CUDNN, card)(16)
    assert not predictor.confirm(CUDNN, card, 1)
    curve = predictor.curve(CUDNN, card)
    assert curve.needs_traces == (last_that_differs > 1)
    assert dataclasses.replace(curve(16), trace_digest=before.trace_digest) == before
    assert curve(1).peak_allocated_bytes == (100 + 64 + 20) * MIB
    assert predictor.confirm(CUDNN, card, 1)
    assert predictor.confirm(CUDNN, card, 33)
    for size in (1, 5, 33):
        traced = predictor.estimate(CUDNN, card, size)
        assert dataclasses.replace(curve(size), trace_digest=traced.trace_digest) == traced


def test_a_size_beyond_the_whole_data_set_is_refused_with_what_to_ask(
    predictor: Predictor, worker: Any, card: Card, make_trace: Any
) -> None:
    worker.trace_at = lambda batch_size: loops(make_trace)(min(batch_size, 30))
    with pytest.raises(WorkloadFailedError, match=r"batch 31 is more than the 30 samples .*--max-batch 30"):
        predictor.curve(CUDNN, card)(31)


def test_an_estimate_says_what_it_was_made_with(predictor: Predictor, card: Card) -> None:
    estimate = predictor.estimate(CUDNN, card, 8)
    assert {"autofit", "torch", "python"} <= estimate.versions.keys()
    assert estimate.to_dict()["versions"] == estimate.versions


def test_plans_are_asked_of_a_traced_size_ahead_and_only_of_one(
    workload: Any, worker: Any, make_trace: Any, card: Card, exact: Residuals
) -> None:
    worker.trace_at = lambda batch_size: make_trace(batch_size, num_channels=256)
    sizes = of_sizes(64 * MIB)
    predictor = Predictor(workload, worker, residuals=exact, plans=lambda _: sizes)
    predictor.prepare(CUDNN, card, 1)
    assert (worker.traced, sizes.asked) == ([], [])
    predictor.trace(CUDNN, 1)
    predictor.prepare(CUDNN, card_named("mi300x"), 1)
    assert sizes.asked == []
    predictor.prepare(CUDNN, card, 1)
    assert sizes.asked
    assert worker.traced == [1]
