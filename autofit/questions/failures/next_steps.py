"""Sentences on what to do after an out-of-memory error, by its cause."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.explain.out_of_memory.diagnosis import Cause, Diagnosis
from autofit.explain.out_of_memory.reader import MemoryFailure
from autofit.units import format_bytes
from autofit_workers.spec.knobs.allocator import allocator_conf

_EXPANDABLE = allocator_conf("expandable_segments")


def next_steps(failure: MemoryFailure, diagnosis: Diagnosis) -> tuple[str, ...]:
    """Sentences on what to do, the most useful first."""
    return tuple(_STEPS[diagnosis.cause](failure, diagnosis))


def _too_large(failure: MemoryFailure, _diagnosis: Diagnosis) -> Iterator[str]:
    asked = format_bytes(failure.requested_bytes or 0)
    yield (
        f"a single tensor of {asked} is more than the card or the limit has: look at the line that made it "
        "for a wrong shape, such as a broadcast or an attention matrix; no setting of the allocator helps"
    )


def _limited(failure: MemoryFailure, _diagnosis: Diagnosis) -> Iterator[str]:
    allowed = format_bytes(failure.allowed_bytes or 0)
    yield f"the process may take {allowed} alone: raise or remove torch.cuda.set_per_process_memory_fraction"


def _fragmented(failure: MemoryFailure, _diagnosis: Diagnosis) -> Iterator[str]:
    unused = format_bytes(failure.unallocated_bytes or 0)
    yield (
        f"{unused} were reserved and unused, in pieces: set PYTORCH_CUDA_ALLOC_CONF={_EXPANDABLE} "
        "(PYTORCH_ALLOC_CONF since 2.9) before torch is imported"
    )
    yield "if sizes change from step to step, pad them to a few lengths, so that blocks are used again"


def _others(failure: MemoryFailure, diagnosis: Diagnosis) -> Iterator[str]:
    held = format_bytes(diagnosis.others_bytes or 0)
    largest = max(failure.processes, key=lambda each: each.num_bytes, default=None)
    which = f", process {largest.pid} the most" if largest and len(failure.processes) > 1 else ""
    which = f", process {largest.pid}" if largest and len(failure.processes) == 1 else which
    yield (
        f"other processes hold {held} of the card{which}: end what is left of earlier runs (nvidia-smi lists "
        "them), or choose another card with CUDA_VISIBLE_DEVICES"
    )


def _outside(failure: MemoryFailure, _diagnosis: Diagnosis) -> Iterator[str]:
    if failure.kind == "communicator":
        yield (
            "NCCL takes its buffers outside PyTorch's allocator, which had left too little of the card: "
            "leave it 1 GiB or more by a smaller batch, or by torch.cuda.set_per_process_memory_fraction(0.9)"
        )
    else:
        yield (
            f"{failure.who} takes its memory outside PyTorch's allocator, which had left too little of the "
            "card, or too little for a workspace: use a smaller batch, and let nothing else run on the card"
        )
    yield (
        "the numbers are not in this error: torch.cuda.memory._dump_snapshot writes them, and `autofit "
        "explain` reads them"
    )


def _full(_failure: MemoryFailure, diagnosis: Diagnosis) -> Iterator[str]:
    missing = diagnosis.missing_bytes
    lacking = f" of at least {format_bytes(missing)} less" if missing else ""
    yield (
        f"live tensors fill the card, and no setting of the allocator helps: the step has to be "
        f"one{lacking}; name the model or script and its batch size here, and changes are computed"
    )
    yield (
        "if it ran for many steps before, something grows or a longer batch came: `autofit estimate "
        "--script` tells which line"
    )


def _host(failure: MemoryFailure, _diagnosis: Diagnosis) -> Iterator[str]:
    asked = "" if failure.requested_bytes is None else f" of {format_bytes(failure.requested_bytes)}"
    yield (
        f"the machine's own memory, not the card's, had no room{asked}: load fewer data or weights at once, "
        "use fewer workers of the DataLoader, or raise the limit of the container"
    )


def _unknown(_failure: MemoryFailure, _diagnosis: Diagnosis) -> Iterator[str]:
    yield (
        "the error states no sizes: the driver had no room, often for another process's memory or for a "
        "pinned buffer; look at nvidia-smi, and name the model or script here to see what it needs"
    )


_STEPS = {
    Cause.TOO_LARGE: _too_large,
    Cause.LIMITED: _limited,
    Cause.FRAGMENTED: _fragmented,
    Cause.OTHER_PROCESSES: _others,
    Cause.OUTSIDE: _outside,
    Cause.FULL: _full,
    Cause.HOST: _host,
    Cause.UNKNOWN: _unknown,
}
