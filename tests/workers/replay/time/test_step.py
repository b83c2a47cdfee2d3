"""A step on the clock: what the host launches, what the device does, and when one waits for the other."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.replay.time.constants import HostConstants, constants
from autofit_workers.replay.time.costs import Costs
from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.replay.time.lines import work_of
from autofit_workers.replay.time.speeds import Speeds
from autofit_workers.replay.time.step import clocked, step_seconds, whole_clock
from autofit_workers.spec.trace import Repetition
from tests.workers.replay.time.steps_by_hand import elementwise, product, trace_of_works

CARD = Speeds(
    name="a card",
    architecture="sm_80",
    num_units=100,
    flops={"float16": 200e12, "float32": 20e12},
    vector_flops=20e12,
    bandwidth=1e12,
    cache_bytes=0,
)
HOST = HostConstants(call=1e-5, backward_call=5e-6, view=1e-6, launch=1e-6, step=0.0)
SMALL, LARGE = elementwise(8), elementwise(100_000_000)  # bound by the host, by the device


def costs() -> Costs:
    return Costs(CARD, dataclasses.replace(constants(), host=HOST))


def clock(works, **of_trace):
    step = work_of(trace_of_works(works, **of_trace))
    return clocked(step.calls, step.in_backward, costs(), host_waits=step.host_waits)


def test_small_kernels_take_as_long_as_the_host_needs_to_launch_them():
    found = clock([SMALL] * 100)
    assert found.seconds == pytest.approx(100 * HOST.call, rel=0.01)
    assert found.waiting_seconds == pytest.approx(found.seconds - found.device_seconds)


def test_large_kernels_hide_the_host():
    found = clock([LARGE] * 100)
    assert found.seconds == pytest.approx(found.device_seconds, rel=0.01)
    assert found.seconds > 10 * 100 * HOST.call


def test_launches_after_a_wait_of_the_host_are_not_hidden():
    free, waiting = clock([LARGE, SMALL]), clock([LARGE, SMALL], waits=(1,))
    assert waiting.seconds == pytest.approx(free.seconds + HOST.call, rel=1e-3)


def test_the_devices_seconds_are_known_by_class():
    found = clock([LARGE, product(4096, 4096, 4096), LARGE])
    assert set(found.class_seconds) == {KernelClass.ELEMENTWISE, KernelClass.MATMUL}
    assert sum(found.class_seconds.values()) == pytest.approx(found.device_seconds)
    assert found.class_seconds[KernelClass.ELEMENTWISE] == pytest.approx(clock([LARGE] * 2).device_seconds)


def test_passes_that_were_not_traced_take_ever_longer_as_the_traced_ones_did():
    works = [elementwise(n * 10_000_000) for n in (50, 1, 2, 3)]
    repetition = Repetition(start=3, num_allocations=1, times=2)
    step = work_of(trace_of_works(works, repetition=repetition))
    found = step_seconds(step, clocked(step.calls, step.in_backward, costs()))
    expected = clock([elementwise(n * 10_000_000) for n in (50, 1, 2, 3, 4, 5)]).seconds
    assert found == pytest.approx(expected, rel=0.01)


def test_the_host_of_a_generation_takes_longer_for_its_calls():
    step = work_of(trace_of_works([SMALL] * 100))
    usual, slow = (
        clocked(step.calls, step.in_backward, costs(), host_cost=each).seconds for each in (1.0, 2.0)
    )
    assert slow == pytest.approx(2 * usual, rel=0.01)


def test_passes_that_were_not_traced_count_among_the_classes_of_a_step():
    works = [product(4096, 4096, 4096), LARGE, LARGE, LARGE]
    step = work_of(trace_of_works(works, repetition=Repetition(start=3, num_allocations=1, times=100)))
    found = clocked(step.calls, step.in_backward, costs())
    last = clocked(step.calls[3:], step.in_backward[3:], costs())
    whole = whole_clock(step, found, last)
    assert whole.seconds == step_seconds(step, found)
    assert whole.class_seconds[KernelClass.MATMUL] == found.class_seconds[KernelClass.MATMUL]
    many = whole.class_seconds[KernelClass.ELEMENTWISE] / found.class_seconds[KernelClass.ELEMENTWISE]
    assert many == pytest.approx(103 / 3, rel=0.02)
    assert whole_clock(step, found, None) is found
