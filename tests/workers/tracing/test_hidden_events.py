"""Scratch memory in traces, where PyTorch takes it, and in curves, where it can be switched off."""

from __future__ import annotations

from collections import Counter

import pytest

from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.corrections import CORRECTION_NAMES
from autofit_workers.replay.curve.peak_curve import PeakCurve

CUBLAS_BYTES = 8_519_680
NONE: frozenset[str] = frozenset()
TRACED = (4, 6, 9)


@pytest.fixture(scope="module")
def curve_of(trace_of):
    """The curve of a small workload through three sizes."""
    return lambda workload: PeakCurve.through([trace_of(f"small:{workload}", size) for size in TRACED])


def test_forward_and_backward_run_in_threads_with_a_cublas_handle_each(steps_of):
    trace = steps_of("perceptron").trace
    taken = [index for index, a in enumerate(trace.allocations) if a.correction == "cublas"]
    first = [trace.events.index(index) for index in taken]
    positions = {mark.name: mark.position for mark in trace.marks}
    assert positions["step 1 forward"] < first[0] < positions["step 1 backward"] < first[1]
    assert first[1] < positions["step 1 optimizer"]
    assert len(taken) == 2
    assert not {~index for index in taken} & set(trace.events)


def test_inference_has_one_handle(steps_of):
    trace = steps_of("perceptron", mode="infer").trace
    assert [a.correction for a in trace.allocations if a.correction] == ["cublas"]


def test_attention_takes_its_scratch_memory_after_its_gradients_and_gives_it_back(steps_of):
    steps = steps_of("attention")
    events = steps.events("backward")
    made = [steps.trace.allocations[max(event, ~event)] for event in events]
    story = [
        (a.scratch.formula if a.scratch else "gradient", event >= 0)
        for event, a in zip(events, made, strict=True)
        if a.operator == "aten._scaled_dot_product_efficient_attention_backward"
        and a.correction != "layout_copies"
    ]
    assert story[:9] == [
        *[("gradient", True)] * 3,
        *[("elements", True)] * 3,  # product, its sums over rows, the sums in order
        *[("elements", False)] * 2,
        ("efficient_query_gradient", True),
    ]
    assert Counter(story[9:]) == {("elements", False): 1, ("efficient_query_gradient", False): 1} | {
        ("gradient", False): 3
    }


def test_what_a_step_takes_it_gives_back_but_for_the_handles(steps_of):
    for workload in ("attention", "language", "convolutional", "strided_sequence"):
        trace = steps_of(workload).trace
        balance = Counter(max(event, ~event) for event in trace.events)
        kept = [a.correction for i, a in enumerate(trace.allocations) if a.correction and balance[i] == 1]
        assert set(kept) <= {"cublas"}


def test_a_correction_that_is_off_takes_no_memory(curve_of):
    curve = curve_of("attention")
    for name in ("cublas", "attention"):
        on_card = curve.on_card(64, Conditions(corrections=frozenset({name})))
        on = on_card.by_first_source.sizes(Level.LIKELY)
        taking = {a.correction for a, size in zip(curve.trace.allocations, on, strict=True) if size}
        assert taking - {""} == {name}
    on, off = (
        curve.on_card(64, conditions).estimate()
        for conditions in (Conditions(), Conditions(corrections=NONE))
    )
    assert off.breakdown["workspace"] == 0
    assert off.allocated_bytes + CUBLAS_BYTES <= on.allocated_bytes


def test_all_corrections_are_on_unless_told_otherwise():
    assert Conditions().corrections == CORRECTION_NAMES


def test_the_release_that_runs_may_be_another_than_the_one_that_traced(curve_of):
    curve = curve_of("perceptron")
    hopper, earlier = (
        curve.on_card(4, Conditions(architecture="sm_100", torch_release=release)).by_first_source.replay()
        for release in (None, (2, 6))
    )
    assert earlier.peak_allocated_bytes < CUBLAS_BYTES * 3 < hopper.peak_allocated_bytes


def test_a_threshold_that_no_trace_passed_is_passed_by_the_curve(curve_of, trace_of):
    curve = curve_of("language")
    large = trace_of("small:language", 700)  # 700 sequences of 5 tokens are more than 3072
    assert curve.lines.agrees_with(large)
    planned = curve.on_card(700, Conditions()).by_first_source
    sizes = planned.sizes(Level.LIKELY)
    sums = [
        size
        for a, size in zip(curve.trace.allocations, sizes, strict=True)
        if a.scratch is not None and a.scratch.formula == "embedding_partial_sums"
    ]
    assert set(sums) == {(3500 // 10 + 100) * 16 * 4}
    known = PeakCurve.through([large]).on_card(700, Conditions()).by_first_source
    assert planned.replay() == known.replay()
