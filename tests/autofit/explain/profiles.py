"""Profiles made by hand: a trace's events with the sizes and peaks of the allocator's replay."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.explain.profile import Profile
from autofit_workers.replay.allocator import Streams, given_blocks, replay
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Call, Category, Mark, Trace


def allocation(num_bytes: int, category: Category = Category.ACTIVATION, **fields) -> Allocation:
    """Allocation of `num_bytes`, by default as a tensor of single bytes."""
    given = {"dtype": "uint8", "shape": (num_bytes,), "operator": "aten.empty", **fields}
    return Allocation(num_bytes=num_bytes, category=category, **given)


def profile_of(
    allocations: Sequence[Allocation],
    events: Sequence[int],
    marks: Sequence[tuple[int, str]] = (),
    calls: Sequence[Call] = (),
) -> Profile:
    """Profile of a trace made of these events, on a card without workspaces."""
    sizes = [each.num_bytes for each in allocations]
    streams = Streams.of(allocations)
    outcome = replay(events, sizes, streams=streams)
    trace = Trace(
        workload="made by hand",
        batch_size=4,
        mode="train",
        optimizer="sgd",
        knobs=Knobs(),
        allocations=tuple(allocations),
        events=tuple(events),
        marks=tuple(Mark(position=position, name=name) for position, name in marks),
        calls=tuple(calls),
    )
    return Profile(
        trace=trace,
        knobs=Knobs(),
        card="rtx-3090",
        architecture="sm_86",
        requested_bytes=tuple(sizes),
        block_bytes=tuple(given_blocks(events, sizes, streams=streams)),
        context_bytes=0,
        peak_allocated_bytes=outcome.peak_allocated_bytes,
        peak_reserved_bytes=outcome.peak_reserved_bytes,
        workspace_source="none",
    )
