"""Diagnosis of an out-of-memory error: which of its sizes was the cause."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.explain.out_of_memory.reader import MemoryFailure
from autofit_workers.spec.pythons import StrEnum

_WHOLE = 1 << 62
_DECISIVE_SHARE = 0.05  # of what was reserved, or of the card; less is there in any run


class Cause(StrEnum):
    """Cause of an out-of-memory error."""

    TOO_LARGE = "too-large"  # the request alone is more than the card or the limit
    LIMITED = "limited"  # the process was allowed less than the card has
    FRAGMENTED = "fragmented"  # as much was reserved and unused, in pieces
    OTHER_PROCESSES = "other-processes"  # without them it would have fitted
    OUTSIDE = "outside"  # what is outside PyTorch's allocator found no room
    FULL = "full"  # live blocks filled the card
    HOST = "host"  # the machine's memory, not the card's
    UNKNOWN = "unknown"  # the error states too little


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Cause of an out-of-memory error, and the sizes that follow from those that it states.

    Attributes:
        cause: what was decisive.
        other_bytes: bytes that this process held outside PyTorch's allocator, such as the CUDA context; null
            if unknown.
        others_bytes: bytes of other processes; null if unknown.
        outside_bytes: bytes of the card that were neither free nor reserved by PyTorch, of whatever process;
            null if unknown.
        missing_bytes: bytes by which the request exceeded what was free; null if unknown.
        is_fragmented: whether what was reserved and unused would have been enough beside what was free; null
            if unknown.
        limit_bytes: bytes that PyTorch could have reserved at that moment: what it had, and what was free;
            null if unknown.
    """

    cause: Cause
    other_bytes: int | None = None
    others_bytes: int | None = None
    outside_bytes: int | None = None
    missing_bytes: int | None = None
    is_fragmented: bool | None = None
    limit_bytes: int | None = None


def diagnose(failure: MemoryFailure) -> Diagnosis:
    """Diagnosis of one error, from the sizes that it states."""
    if failure.kind == "host":
        return Diagnosis(cause=Cause.HOST)
    requested, free, total = failure.requested_bytes, failure.free_bytes, failure.total_bytes
    reserved, allowed = failure.reserved_bytes, failure.allowed_bytes
    process, unallocated = failure.process_bytes, failure.unallocated_bytes
    other = None if process is None or reserved is None else max(0, process - reserved)
    outside = None
    if total is not None and free is not None and reserved is not None:
        outside = max(0, total - free - reserved)
    others = _others(failure)
    missing = None if requested is None or free is None else max(0, requested - free)
    limit = None if reserved is None or free is None else reserved + free
    if limit is not None and allowed is not None:
        limit = min(limit, allowed)
    fragmented = None if missing is None or unallocated is None else 0 < missing <= unallocated
    return Diagnosis(
        cause=_cause(failure, others, fragmented=fragmented),
        other_bytes=other,
        others_bytes=others,
        outside_bytes=outside,
        missing_bytes=missing,
        is_fragmented=fragmented,
        limit_bytes=limit,
    )


def _others(failure: MemoryFailure) -> int | None:
    """Bytes of other processes: those that the error names, or what is left of the card."""
    if failure.processes:
        return sum(each.num_bytes for each in failure.processes)
    total, free, process = failure.total_bytes, failure.free_bytes, failure.process_bytes
    return None if total is None or free is None or process is None else max(0, total - free - process)


def _cause(failure: MemoryFailure, others: int | None, *, fragmented: bool | None) -> Cause:
    if failure.kind in ("library", "communicator"):
        return Cause.OUTSIDE
    requested, allowed, free = failure.requested_bytes, failure.allowed_bytes, failure.free_bytes
    if requested is None or (free is None and allowed is None):
        return Cause.UNKNOWN
    total, unused = failure.total_bytes, failure.unallocated_bytes or 0
    reserved = failure.reserved_bytes or failure.allocated_bytes or 0
    room = min(each for each in (total, allowed, _WHOLE) if each is not None)
    is_limited = allowed is not None and free is not None and requested <= free
    would_be_alone = others is not None and others + (free or 0) >= requested
    checks = (
        (requested > room, Cause.TOO_LARGE),
        (fragmented and unused >= _DECISIVE_SHARE * reserved, Cause.FRAGMENTED),
        (is_limited and reserved + requested > (allowed or 0), Cause.LIMITED),
        (would_be_alone and (others or 0) >= _DECISIVE_SHARE * (total or 0), Cause.OTHER_PROCESSES),
        (True, Cause.FULL),
    )
    return next(cause for holds, cause in checks if holds)
