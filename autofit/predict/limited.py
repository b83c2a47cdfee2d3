"""An estimate on a card of so much memory: what is reserved there, and what the run would need."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from autofit.predict.estimate import Estimate, Interval, Unknown
from autofit.predict.intervals.confidence import Calibration
from autofit.units import format_bytes
from autofit_workers.replay.curve.step_on_card import WithinLimit
from autofit_workers.spec.protocol import Verdict

_MUCH_BYTES = 1 << 30  # below it the free parts of segments may be more than all tensors of a small model


def limited(
    estimate: Estimate,
    within: WithinLimit,
    least: Callable[[], int],
    calibration: Calibration,
    limit_bytes: int,
) -> Estimate:
    """The estimate where the allocator can reserve no more than a limit.

    What stays within it is as it was. Beyond it the allocator has given back what it kept, so that nothing
    above the limit is ever reserved; what would have been is the need.

    Args:
        estimate: where any memory can be had.
        within: what becomes of its likely replay under the limit.
        least: tells about the least memory that it runs in.
        calibration: by which its interval was widened.
    """
    unlimited = estimate.interval
    estimate = dataclasses.replace(
        estimate,
        limit_bytes=limit_bytes,
        likely_verdict=within.verdict,
        num_alloc_retries=within.num_alloc_retries,
    )
    if unlimited.high_bytes <= limit_bytes:
        return estimate
    likely_bytes, need = within.reserved_bytes, unlimited
    if within.verdict is Verdict.OOM:
        least_bytes = least()
        if least_bytes < unlimited.likely_bytes:
            need = _widened(least_bytes, calibration)
    else:
        estimate = _with_allocated(estimate, within.allocated_bytes)
        estimate = dataclasses.replace(
            estimate, unknowns=tuple(_up_to(limit_bytes, likely_bytes, each) for each in estimate.unknowns)
        )
    return dataclasses.replace(
        estimate,
        peak_reserved_bytes=likely_bytes,
        device_peak_bytes=likely_bytes + estimate.context_bytes,
        interval=Interval(
            low_bytes=min(unlimited.low_bytes, likely_bytes, calibration.low_end(likely_bytes)),
            likely_bytes=likely_bytes,
            high_bytes=limit_bytes,
        ),
        need=need,
    )


def on_any_card(estimate: Estimate) -> Estimate:
    """The estimate where nobody said how large the card is, with a note where that decides most of it."""
    free_bytes = estimate.peak_reserved_bytes - estimate.peak_allocated_bytes
    if free_bytes <= max(estimate.peak_allocated_bytes, _MUCH_BYTES):
        return estimate
    note = (
        f"{format_bytes(free_bytes)} of the reserved peak are free blocks that nothing fits into, of which "
        "the allocator keeps as many as the card has room for: name it with --gpu"
    )
    return dataclasses.replace(estimate, notes=(*estimate.notes, note))


def _widened(likely_bytes: int, calibration: Calibration) -> Interval:
    low_bytes, high_bytes = calibration.low_end(likely_bytes), calibration.high_end(likely_bytes)
    return Interval(low_bytes=low_bytes, likely_bytes=likely_bytes, high_bytes=high_bytes)


def _up_to(limit_bytes: int, likely_bytes: int, unknown: Unknown) -> Unknown:
    """What an unknown moves on the card."""
    return dataclasses.replace(
        unknown,
        low_bytes=min(unknown.low_bytes, likely_bytes),
        likely_bytes=likely_bytes,
        high_bytes=max(likely_bytes, min(unknown.high_bytes, limit_bytes)),
    )


def _with_allocated(estimate: Estimate, allocated_bytes: int) -> Estimate:
    """The same with an allocated peak that is lower where convolutions had to take smaller workspaces."""
    less_bytes = estimate.peak_allocated_bytes - allocated_bytes
    if less_bytes <= 0:
        return estimate
    workspace = estimate.breakdown.workspace - less_bytes
    return dataclasses.replace(
        estimate,
        peak_allocated_bytes=allocated_bytes,
        breakdown=dataclasses.replace(estimate.breakdown, workspace=workspace),
    )
