"""Estimates on a card of limited memory: the reserved peak on it, and the memory that the run needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from autofit.predict.confidence import Calibration
from autofit.predict.estimate import Estimate, Interval, Unknown
from autofit.units import format_bytes
from autofit_workers.replay.curve.step_on_card import WithinLimit
from autofit_workers.spec.protocol import Verdict

_MUCH_BYTES = 1 << 30  # no note below it: in small models, free blocks often exceed the tensors


def limited(
    estimate: Estimate,
    within: WithinLimit,
    least: Callable[[], int],
    calibration: Calibration,
    limit_bytes: int,
) -> Estimate:
    """Estimate of a configuration on a card where the allocator can reserve no more than `limit_bytes`.

    A peak within the limit stays as it is. At the limit the allocator releases its cached memory, so
    never more is reserved; the reserved peak without a limit becomes the estimate's `need`.

    Args:
        estimate: the estimate on a card of unlimited memory.
        within: what happens at the likely peak under the limit, by a simulation of the allocator.
        least: returns about the least memory, in bytes, in which the step completes at its likely sizes.
        calibration: past errors by which the estimate's interval was widened.
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
    """Estimate for a card of unknown memory, with a note if most of the reserved peak is free blocks."""
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
    """Copy of a source of uncertainty whose peaks do not exceed the card's memory.

    Args:
        likely_bytes: likely reserved peak on the card.
    """
    return dataclasses.replace(
        unknown,
        low_bytes=min(unknown.low_bytes, likely_bytes),
        likely_bytes=likely_bytes,
        high_bytes=max(likely_bytes, min(unknown.high_bytes, limit_bytes)),
    )


def _with_allocated(estimate: Estimate, allocated_bytes: int) -> Estimate:
    """Estimate with the lower allocated peak that results if convolutions take smaller workspaces."""
    less_bytes = estimate.peak_allocated_bytes - allocated_bytes
    if less_bytes <= 0:
        return estimate
    workspace = estimate.breakdown.workspace - less_bytes
    return dataclasses.replace(
        estimate,
        peak_allocated_bytes=allocated_bytes,
        breakdown=dataclasses.replace(estimate.breakdown, workspace=workspace),
    )
