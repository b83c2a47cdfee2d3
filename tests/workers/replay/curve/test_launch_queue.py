"""How far the host can be ahead of the card: as far as a stream's queue takes launches."""

from __future__ import annotations

import dataclasses

from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.lines.step_lines import StepLines
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Trace
from autofit_workers.spec.vendors import Vendor

MIB = 1 << 20
KERNEL = Allocation(num_bytes=512, category=Category.OTHER, operator="aten.mul.Tensor", shape=(128,))
EMPTY = Allocation(num_bytes=512, category=Category.OTHER, operator="aten.empty.memory_format", shape=(128,))
# Gathered beside the default stream, which uses it.
GATHERED = Allocation(num_bytes=20 * MIB, category=Category.OTHER, stream=1, stream_uses=(0,))


def trace_of(*allocations: Allocation) -> Trace:
    """A step whose allocations are freed one after the other."""
    events = tuple(event for number in range(len(allocations)) for event in (number, ~number))
    return Trace(
        workload="step",
        batch_size=1,
        mode="train",
        optimizer="",
        knobs=Knobs(),
        allocations=allocations,
        events=events,
    )


def reserved_mib(allocation: Allocation, level: Level, *, architecture: str = "sm_80") -> int:
    """What a step reserves that gathers forty times, with a hundred such allocations after each time."""
    trace = trace_of(*(40 * (GATHERED, *(100 * (allocation,)))))
    step = PeakCurve.through([trace]).on_card(1, Conditions(architecture=architecture))
    return step.reserved_bytes(level) // MIB


def test_no_more_waits_for_other_streams_than_their_queues_take():
    """Of a thousand launches and the step between two waits, ten times of a hundred, one more is alive."""
    assert reserved_mib(KERNEL, Level.LIKELY) == 20 + 2
    assert 11 * 20 <= reserved_mib(KERNEL, Level.HIGH) <= 13 * 20


def test_what_launches_nothing_fills_no_queue():
    assert reserved_mib(EMPTY, Level.HIGH) == 40 * 20 + 2


def test_nothing_is_assumed_of_the_queues_of_other_vendors():
    assert reserved_mib(KERNEL, Level.HIGH, architecture="gfx942") == 40 * 20 + 2


def test_a_call_counts_once_whatever_it_allocates():
    """Operators on lists allocate for each of many tensors, by few kernels."""
    tensors = range(1, 2001)
    one_call = (*tensors, *(~number for number in tensors))
    trace = dataclasses.replace(trace_of(GATHERED, *(2000 * (KERNEL,))), events=(0, ~0, *one_call))
    assert not StepLines.through([trace]).streams_on(Vendor.NVIDIA).host_waits


def test_a_step_on_one_stream_has_no_waits():
    lines = StepLines.through([trace_of(*(3000 * (KERNEL,)))])
    assert not lines.streams_on(Vendor.NVIDIA).host_waits
