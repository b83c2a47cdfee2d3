"""The peak curve of a step on several streams, hand-made: what is gathered on a stream of its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autofit_workers.replay.allocator import ONE_STREAM, Streams
from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.lines.step_lines import BatchDependentEventsError
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.unrolled import unrolled, unrolled_streams
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.trace import Allocation, Category, HostWait, Repetition, Trace

MIB = 1 << 20
GATHERED_BYTES = 20 * MIB


def gathering(batch_size: int, *, num_gathers: int = 3, **changes: Any) -> Trace:
    """Gathers one layer after the other, each for an activation of the batch, and frees it again.

    Args:
        changes: of what is gathered.
    """
    gathered = Allocation(num_bytes=GATHERED_BYTES, category=Category.OTHER, shape=(5 * MIB,))
    activation = Allocation(
        num_bytes=2 * MIB * batch_size, category=Category.ACTIVATION, shape=(batch_size, MIB // 2)
    )
    events = [event for layer in range(num_gathers) for event in (2 * layer, 2 * layer + 1, ~(2 * layer))]
    return Trace(
        workload="gathering",
        batch_size=batch_size,
        mode="train",
        optimizer="sgd",
        knobs=Knobs(),
        allocations=(dataclasses.replace(gathered, **changes), activation) * num_gathers,
        events=tuple(events),
    )


def curve_of(**changes: Any) -> PeakCurve:
    return PeakCurve.through([gathering(batch_size, **changes) for batch_size in (1, 2, 3)])


def reserved_mib(curve: PeakCurve, level: Level) -> int:
    return curve.on_card(10, Conditions()).reserved_bytes(level) // MIB


@pytest.mark.parametrize("level", [Level.LOW, Level.LIKELY, Level.HIGH])
def test_a_stream_does_not_reuse_what_another_has_freed(level):
    def small_curve(**changes: Any) -> PeakCurve:
        # Gathered, used, freed, and then another activation of its size.
        return PeakCurve.through([dataclasses.replace(gathering(10, **changes), events=(0, 1, ~0, 3))])

    assert reserved_mib(small_curve(), level) == 40
    assert reserved_mib(small_curve(stream=1), level) == 60
    # The next gathering finds it on either.
    assert reserved_mib(curve_of(), level) == reserved_mib(curve_of(stream=1), level) == 80


def test_where_the_device_may_lag_what_another_stream_uses_widens_the_interval():
    estimate = curve_of(stream=1, stream_uses=(0,)).on_card(10, Conditions()).estimate()
    assert (estimate.low_bytes, estimate.reserved_bytes, estimate.high_bytes) == (
        80 * MIB,
        80 * MIB,
        120 * MIB,
    )


def test_a_wait_of_the_host_bounds_how_far_the_device_lags():
    def waiting(batch_size: int) -> Trace:
        waits = (HostWait(position=6, stream=0, up_to=3),)  # for the first, before the third
        return dataclasses.replace(gathering(batch_size, stream=1, stream_uses=(0,)), host_waits=waits)

    assert reserved_mib(PeakCurve.through([waiting(1), waiting(2)]), Level.HIGH) == 100


def test_under_a_limit_the_host_waits_for_what_other_streams_use():
    on_card = curve_of(stream=1, stream_uses=(0,)).on_card(10, Conditions())
    assert on_card.verdict(120 * MIB) is Verdict.FITS
    assert on_card.verdict(80 * MIB) is Verdict.THRASH
    assert on_card.verdict(80 * MIB, Level.LIKELY) is Verdict.FITS
    assert on_card.verdict(79 * MIB) is Verdict.OOM


@pytest.mark.parametrize("changes", [{"stream": 1}, {"stream_uses": (1,)}])
def test_traces_on_other_streams_are_not_of_one_curve(changes):
    with pytest.raises(BatchDependentEventsError, match="allocates differently"):
        PeakCurve.through([gathering(1), gathering(2, **changes)])
    assert not curve_of().lines.agrees_with(gathering(5, **changes))
    assert curve_of().lines.agrees_with(gathering(5))


def test_passes_that_repeat_the_last_one_are_on_its_streams():
    trace = gathering(1, num_gathers=2, stream=1, stream_uses=(0,))
    repeated = dataclasses.replace(trace, repetition=Repetition(start=3, num_allocations=2, times=2))
    events, sizes = unrolled(repeated, [each.num_bytes for each in trace.allocations])
    assert (len(events), len(sizes)) == (12, 8)
    assert unrolled_streams(repeated) == Streams(
        of_requests=dict.fromkeys((0, 2, 4, 6), 1), uses=dict.fromkeys((0, 2, 4, 6), (0,))
    )
    assert unrolled_streams(gathering(1)) == ONE_STREAM
