"""Memory of a step on a CPU: malloc blocks of its tensors, and how much of them is written to.

PyTorch keeps no memory on the CPU: each tensor is a block of malloc's, freed as the tensor is
(c10/core/impl/alloc_cpu.cpp, which aligns to 64 bytes). In a trial's process malloc maps a large
block by itself and gives it back at once (`autofit_workers.trials.isolate`).
"""

from __future__ import annotations

import dataclasses

from autofit_workers.replay.curve.conditions import Level
from autofit_workers.replay.curve.sized_step import SizedStep
from autofit_workers.spec.trace import Trace

_ALIGNMENT_BYTES = 64
_PAGE_BYTES = 4096
MAPPED_FROM_BYTES = 131072  # M_MMAP_THRESHOLD of a trial's process
# `_int_memalign` of glibc's malloc asks for the alignment and the smallest chunk, 32 bytes, on top;
# either kind of block has a header of 16.
_OVERHEAD_BYTES = _ALIGNMENT_BYTES + 32 + 16


def identity(trace: Trace) -> str:
    """Identity string of a step's trace for the CPU, without the sizes measured on the machine."""
    tensors = tuple(a for a in trace.allocations if a.span_bytes is None)
    return dataclasses.replace(trace, allocations=tensors, events=(), marks=()).identity


def touched_bytes(step: SizedStep) -> int:
    """Peak in bytes of the memory that a step writes to, and that so is resident."""
    return step.live_bytes(Level.LOW, block_bytes)


def asked_bytes(step: SizedStep) -> int:
    """Peak in bytes of a step's memory from malloc, which a limit of private writable memory counts."""
    return step.live_bytes(Level.LIKELY, block_bytes)


def most_bytes(step: SizedStep) -> int:
    """Peak in bytes of a step's memory from malloc, with the largest known scratch memory of oneDNN."""
    return step.live_bytes(Level.HIGH, block_bytes)


def block_bytes(num_bytes: int) -> int:
    """Bytes of the malloc block that a tensor of `num_bytes` takes."""
    if num_bytes < MAPPED_FROM_BYTES:
        return _rounded(num_bytes, _ALIGNMENT_BYTES)
    return _rounded(num_bytes + _OVERHEAD_BYTES, _PAGE_BYTES)


def _rounded(num_bytes: int, multiple: int) -> int:
    return -(-num_bytes // multiple) * multiple
