"""A run at lengths that were drawn, from a trace of a few of its batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from autofit_workers.replay.curve.varying_run import VaryingRun
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Lengths, Scratch, Seen, Trace

TRACED = [(311,), (87,), (902,), (95,), (411,), (128,), (640,), (77,)]
MORE = [(260,), (777,), (19,), (350,), (96,), (512,)]
COMING = [(500,), (33,), (1024,), (7,)]


def run_of(lengths: Sequence[tuple[int]], *, accumulated: int = 1) -> Trace:
    """The trace of a run whose batch is fetched while the last one is trained on, as trainers do."""
    allocations: list[Allocation] = []
    events: list[int] = []
    starts, ends = [], []

    def take(num_bytes: int, scratch: Scratch | None = None) -> int:
        correction = "" if scratch is None else "reductions"
        allocations.append(
            Allocation(
                num_bytes=num_bytes, category=Category.ACTIVATION, scratch=scratch, correction=correction
            )
        )
        events.append(len(allocations) - 1)
        return events[-1]

    def free(number: int) -> None:
        events.append(~number)

    take(4_000_000)  # the model
    fetched = take(8 * lengths[0][0])
    gradients: int | None = None
    for number, (length,) in enumerate(lengths):
        starts.append(len(events))
        activations = [take(4096 * length), take(16 * length * length)]
        scratch = take(0, Scratch(formula="elements", dimensions=(length, 4), element_bytes=4))
        if gradients is None:
            gradients = take(4_000_000)
        for each in (*activations, scratch):
            free(each)
        following = take(8 * lengths[number + 1][0]) if number + 1 < len(lengths) else None
        if (number + 1) % accumulated == 0:
            if number + 1 == accumulated:
                take(8_000_000)  # the optimizer's states
            free(gradients)
            gradients = None
            ends.append(len(events))
        free(fetched)
        fetched = following if following is not None else fetched
    return Trace(
        workload="train.py",
        batch_size=4,
        mode="train",
        optimizer="custom",
        knobs=Knobs(),
        allocations=tuple(allocations),
        events=tuple(events),
        seen=Seen(step_ends=tuple(ends)),
        lengths=Lengths(
            starts=tuple(starts),
            numbers=tuple(lengths),
            shapes=tuple((4, length) for (length,) in [*lengths, *COMING]),
            numbers_coming=tuple(COMING),
        ),
    )


def sizes_of(trace: Trace) -> list[int]:
    """Bytes of all allocations, of scratch memory 4 bytes an element."""
    return [
        each.num_bytes if each.scratch is None else 16 * each.scratch.dimensions[0]
        for each in trace.allocations
    ]


def demand(calls: Sequence[object]) -> list[int]:
    return [16 * call[1].dimensions[0] for call in calls]  # type: ignore[index]


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_run_is_drawn_to_the_byte_as_it_would_be_traced(accumulated):
    traced = [*TRACED, *MORE]
    few = run_of(traced, accumulated=accumulated)
    run = VaryingRun.of(few, sizes_of(few), demand)
    assert run is not None
    num_warm = run.num_traced - run.num_steady
    order = [traced[num_warm], *COMING, *TRACED, *COMING]  # whose first was fetched in the warm-up
    whole = run_of([*traced[:num_warm], *order], accumulated=accumulated)
    events, sizes = run.drawn(order)
    stop = whole.lengths.starts[-1]
    assert events[:stop] == list(whole.events[:stop])
    num_allocated = sum(event >= 0 for event in events[:stop])
    last_fetched = num_allocated - 1  # of a batch that only one of the two has
    assert sizes[:last_fetched] == sizes_of(whole)[:last_fetched]


def test_a_trace_whose_batches_are_alike_or_have_no_events_in_common_is_no_such_run():
    trace = run_of(TRACED)
    alike = Trace.from_json(trace.to_json().replace('"lengths"', '"unknown"'))
    assert VaryingRun.of(alike, sizes_of(alike), demand) is None
    changing = run_of(TRACED[:4])
    events = [event for event in changing.events if event != changing.events[changing.lengths.starts[2] + 1]]
    assert (
        VaryingRun.of(Trace.from_dict({**changing.to_dict(), "events": events}), sizes_of(changing), demand)
        is None
    )


def test_lengths_are_kept_in_the_document_of_a_trace():
    trace = run_of(TRACED)
    assert Trace.from_json(trace.to_json()) == trace
