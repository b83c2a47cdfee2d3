"""Prediction for one batch size on one card: its peaks, and the allocations alive at the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autofit_workers.replay.curve.unrolled import allocation_of, unrolled
from autofit_workers.spec.trace import Allocation, Category, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveAllocation:
    """Allocation alive at the allocated peak, with its bytes.

    Attributes:
        allocation: the allocation in the first trace, whose batch size and so whose shape may differ.
        num_bytes: bytes at the predicted batch size.
    """

    allocation: Allocation
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakEstimate:
    """Predicted allocated and reserved peaks of a step on a card, with their uncertainty.

    Where it is not known how much workspace cuDNN will take for a convolution, it is assumed as likely, low
    or high. If the cuDNN that will run cannot be queried, several sources of its convolution plans are used.

    Attributes:
        allocated_bytes, reserved_bytes: allocated and reserved peak with the likely workspaces. If there are
            several sources of convolution plans, these two, the workspaces, `breakdown` and `live` are by the
            source whose reserved peak is the lower median.
        low_bytes, high_bytes: smallest and largest reserved peak with low, likely and high workspaces, over
            all sources.
        allocated_low_bytes, allocated_high_bytes: smallest and largest allocated peak with the same.
        workspace_low_bytes, workspace_likely_bytes, workspace_high_bytes: the largest workspace of
            any one convolution call. Calls run one after the other, so only one workspace is alive at a time.
        breakdown: bytes alive at the allocated peak, by category; they add up to the allocated peak.
        live: allocations alive at the allocated peak, largest first.
    """

    batch_size: int
    allocated_bytes: int
    reserved_bytes: int
    low_bytes: int
    high_bytes: int
    allocated_low_bytes: int
    allocated_high_bytes: int
    workspace_low_bytes: int
    workspace_likely_bytes: int
    workspace_high_bytes: int
    breakdown: dict[Category, int]
    live: tuple[LiveAllocation, ...]


def live_after(trace: Trace, position: int, sizes: Sequence[int]) -> list[LiveAllocation]:
    """Allocations alive right after an event, largest first.

    Args:
        trace: the trace.
        position: index of the event. The events of a text generation continue past the trace's end with the
            passes that were not traced.
        sizes: bytes of every allocation of the trace.
    """
    alive: set[int] = set()
    events, sizes = unrolled(trace, sizes)
    for event in events[: position + 1]:
        if event >= 0:
            alive.add(event)
        else:
            alive.discard(~event)
    live = [LiveAllocation(allocation=allocation_of(trace, i), num_bytes=sizes[i]) for i in alive]
    return sorted(live, key=lambda one: one.num_bytes, reverse=True)


def by_category(live: Iterable[LiveAllocation], allocated_bytes: int) -> dict[Category, int]:
    """Bytes of the live allocations by category, such as parameters or activations.

    Args:
        live: the allocations.
        allocated_bytes: allocated memory at the same time; what exceeds the allocations counts as `OTHER`.
    """
    breakdown = dict.fromkeys(Category, 0)
    for one in live:
        breakdown[one.allocation.category] += one.num_bytes
    # A block can be larger than its request; that slack belongs to no tensor.
    breakdown[Category.OTHER] += allocated_bytes - sum(breakdown.values())
    return breakdown
