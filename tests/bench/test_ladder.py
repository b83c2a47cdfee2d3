"""Ladders of batch sizes: which size was tried before, and what its failed try leaves in the trace."""

from __future__ import annotations

import pytest

from tests.bench.ladder import after_failed_try, tried_before
from workers.allocator import replay
from workers.predict.curve import PeakCurve
from workers.protocol import Knobs
from workers.trace import Allocation, Category, Mark, Trace

MIB = 2**20


@pytest.mark.parametrize(
    ("batch_size", "first", "before"),
    [(1024, 1024, None), (768, 1024, 1024), (512, 1024, 768), (1536, 2048, 2048), (48, 512, 64), (1, 512, 2)],
)
def test_before_a_size_its_next_larger_step_was_tried(
    batch_size: int, first: int, before: int | None
) -> None:
    assert tried_before(batch_size, first) == before


def one_step(batch_size: int) -> Trace:
    """40 MiB of weights, 4 MiB of input for each sample, and 1 MiB for each sample that is made of it."""
    sizes = (40 * MIB, 4 * MIB * batch_size, MIB * batch_size)
    categories = (Category.PARAMETER, Category.INPUT, Category.ACTIVATION)
    return Trace(
        workload="one step",
        batch_size=batch_size,
        mode="infer",
        optimizer="",
        knobs=Knobs(),
        allocations=tuple(
            Allocation(num_bytes=size, category=each) for size, each in zip(sizes, categories, strict=True)
        ),
        events=(0, 1, 2, ~2),
        marks=(
            Mark(position=0, name="model"),
            Mark(position=1, name="step 1 input"),
            Mark(position=2, name="step 1 forward"),
        ),
    )


def test_the_next_input_lies_in_the_segment_of_the_last_one() -> None:
    trace = after_failed_try(one_step(30), 40)
    assert trace.events == (0, 3, ~3, 1, 2, ~2)
    assert [mark.position for mark in trace.marks] == [0, 1, 4]
    assert trace.allocations[3].num_bytes == 40 * 4 * MIB
    # What is made of it fits into the rest: nothing more is reserved.
    sizes = [each.num_bytes for each in trace.allocations]
    assert replay(trace.events, sizes).peak_reserved_bytes == (40 + 160) * MIB


def test_what_is_left_behind_does_not_grow_with_the_batch() -> None:
    curve = PeakCurve([after_failed_try(one_step(size), 40) for size in (4, 6, 10)])
    assert curve.agrees_with(after_failed_try(one_step(30), 40))
