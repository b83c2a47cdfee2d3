"""Makes the parts of an estimate from predicted peaks."""

from __future__ import annotations

from collections.abc import Iterable

from autofit.predict.confidence import Calibration
from autofit.predict.estimate import Breakdown, LargeTensor, Unknown, WorkspaceSpan
from autofit_workers.replay.curve.peak_estimate import LiveAllocation, PeakEstimate
from autofit_workers.spec.trace import Category

_NUM_LARGEST = 8


def breakdown(by_category: dict[Category, int]) -> Breakdown:
    """Bytes alive at the allocated peak by purpose, from their sums by category."""
    return Breakdown(
        parameters=by_category[Category.PARAMETER],
        gradients=by_category[Category.GRADIENT],
        optimizer_state=by_category[Category.OPTIMIZER_STATE],
        activations=by_category[Category.ACTIVATION],
        inputs=by_category[Category.INPUT],
        workspace=by_category[Category.WORKSPACE],
        other=by_category[Category.OTHER],
    )


def unknowns(
    peak: PeakEstimate,
    most_bytes: int,
    calibration: Calibration,
    *,
    workspaces: str,
    modules: tuple[str, ...],
) -> tuple[Unknown, ...]:
    """Sources of a peak's uncertainty, the one with the highest possible peak first.

    Sources without effect are left out.

    Args:
        most_bytes: high end of the peak if sizes that depend on data values are as large as possible.
        calibration: past errors of predictions, by which the peak is widened.
        workspaces: phrase for the sizes that are only known within bounds.
        modules: paths of the modules with the largest workspace.
    """
    likely = peak.reserved_bytes
    ends = {
        workspaces: (peak.low_bytes, peak.high_bytes),
        "sizes that depend on values": (likely, likely + max(0, most_bytes - peak.high_bytes)),
        "what real runs were off by": (calibration.low_end(likely), calibration.high_end(likely)),
    }
    unknowns = [
        Unknown(
            source=source,
            low_bytes=min(low, likely),
            likely_bytes=likely,
            high_bytes=max(high, likely),
            modules=modules if source == workspaces else (),
        )
        for source, (low, high) in ends.items()
        if (low, high) != (likely, likely)
    ]
    return tuple(sorted(unknowns, key=lambda unknown: -unknown.high_bytes))


def workspace_span(peak: PeakEstimate) -> WorkspaceSpan | None:
    """Range of the largest convolution workspace, in bytes; None if it is known exactly."""
    low, high = peak.workspace_low_bytes, peak.workspace_high_bytes
    return None if low == high else WorkspaceSpan(low=low, likely=peak.workspace_likely_bytes, high=high)


def largest(live: Iterable[LiveAllocation]) -> tuple[LargeTensor, ...]:
    """Largest live allocations, summed by module, operator and source line."""
    sums: dict[tuple[str, str, str], int] = {}
    for item in live:
        origin = item.allocation
        key = (origin.module, origin.operator, origin.source)
        sums[key] = sums.get(key, 0) + item.num_bytes
    ordered = sorted(sums.items(), key=lambda pair: pair[1], reverse=True)
    return tuple(
        LargeTensor(module=module, operator=operator, source=source, num_bytes=num_bytes)
        for (module, operator, source), num_bytes in ordered[:_NUM_LARGEST]
    )
