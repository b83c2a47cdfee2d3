"""The work of a step at any batch size, from its traces at several."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.time.lines import BatchDependentWorkError, Repeated, WorkLines, work_of
from autofit_workers.spec.trace import Mark, Repetition
from autofit_workers.spec.work import Operand
from tests.workers.replay.time.steps_by_hand import elementwise, product, trace_of_works


@pytest.mark.parametrize("workload", ["small:convolutional", "small:attention"])
def test_the_work_at_another_size_is_that_of_a_trace_there(trace_of, workload):
    lines = WorkLines.through([trace_of(workload, batch_size) for batch_size in (4, 6, 10)])
    traced = trace_of(workload, 7)
    assert traced.work
    assert lines.at(7).calls == traced.work
    assert lines.at(7).in_backward == work_of(traced).in_backward


def test_calls_that_are_alike_share_their_work():
    sizes = (4, 6, 10)
    traces = [trace_of_works([elementwise(n, 8), product(n, 16, 8), elementwise(n, 8)], n) for n in sizes]
    first, _, last = WorkLines.through(traces).at(32).calls
    assert first.work is last.work
    assert first.work == elementwise(32, 8)


def test_one_trace_knows_its_own_size_alone():
    lines = WorkLines.through([trace_of_works([elementwise(4, 8)], 4)])
    assert lines.only_batch_size == 4
    assert [call.work for call in lines.at(4).calls] == [elementwise(4, 8)]


def test_the_engine_makes_the_calls_of_backward():
    trace = trace_of_works([elementwise(4)] * 5, marks=(0, 0, 1, 2, 4))
    assert work_of(trace).in_backward == (False, False, True, True, False)


def test_host_waits_of_the_last_step_are_known_by_the_calls_before_which_they_are():
    trace = trace_of_works([elementwise(4)] * 3, marks=(0, 0, 0, 2, 2), waits=(0, 2, 2))
    trace = dataclasses.replace(trace, events=(0, ~0, 1, ~1))
    assert work_of(trace).host_waits == (0, 2)


def test_the_last_pass_of_a_generation_is_repeated():
    repetition = Repetition(start=3, num_allocations=2, times=7)
    step = work_of(trace_of_works([elementwise(4)] * 5, repetition=repetition))
    assert step.repeated == Repeated(num_calls=2, times=7)


def test_the_first_token_of_a_generation_is_made_by_the_calls_before_its_second_pass():
    trace = trace_of_works([elementwise(4)] * 5, marks=(0, 0, 0, 5, 5))
    decode = [Mark(position=at, name="step 1 decode") for at in (3, 4)]
    generation = dataclasses.replace(trace, marks=(*trace.marks[:3], *decode))
    assert work_of(generation).first_calls == 3
    assert work_of(trace).first_calls == 0


@pytest.mark.parametrize(
    "other",
    [
        [elementwise(6, 8), elementwise(6, 8)],
        [elementwise(6, 8, operator="aten.gelu")],
        [elementwise(6, 8, dtype="float16")],
        [elementwise(6, 8, 1)],
        [elementwise(6, 8, operator="aten.sum")],
    ],
)
def test_steps_that_do_other_work_at_other_sizes_have_no_lines(other):
    with pytest.raises(BatchDependentWorkError):
        WorkLines.through([trace_of_works([elementwise(4, 8)], 4), trace_of_works(other, 6)])


def test_a_dimension_off_the_line_is_seen_on_the_third_trace():
    traces = [trace_of_works([elementwise(rows)], n) for n, rows in ((4, 16), (6, 36), (10, 100))]
    with pytest.raises(BatchDependentWorkError, match="no line"):
        WorkLines.through(traces)


def test_an_operand_that_is_repeated_at_one_size_alone_has_no_lines():
    work = elementwise(6, 8)
    expanded = dataclasses.replace(work, inputs=(Operand((6, 8), "float32", repeated=(0,)),))
    with pytest.raises(BatchDependentWorkError):
        WorkLines.through([trace_of_works([elementwise(4, 8)], 4), trace_of_works([expanded], 6)])
