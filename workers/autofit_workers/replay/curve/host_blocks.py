"""Memory of a step on a CPU: malloc blocks of its tensors, and how much of them is written to.

PyTorch has no caching allocator on the CPU: each tensor is a block of malloc, freed with the tensor
(c10/core/impl/alloc_cpu.cpp, which aligns to 64 bytes). In the process of a trial malloc maps each large
block separately and unmaps it as soon as it is freed (`autofit_workers.trials.isolate`).
"""

from __future__ import annotations

import dataclasses

from autofit_workers.replay.curve.conditions import Level
from autofit_workers.replay.curve.sized_step import SizedStep
from autofit_workers.spec.trace import Trace

_ALIGNMENT_BYTES = 64
_PAGE_BYTES = 4096
MAPPED_FROM_BYTES = 131072  # M_MMAP_THRESHOLD of a trial's process
# For aligned memory `_int_memalign` of glibc's malloc adds the alignment and its smallest chunk, 32 bytes, to
# the request; every block has a header of 16 bytes.
_OVERHEAD_BYTES = _ALIGNMENT_BYTES + 32 + 16


def identity(trace: Trace) -> str:
    """Key of a step traced for the CPU, equal for equal steps on different machines.

    It leaves out oneDNN's scratch memory, whose size was measured on the machine that traced.
    """
    tensors = tuple(a for a in trace.allocations if a.span_bytes is None)
    return dataclasses.replace(trace, allocations=tensors, events=(), marks=()).identity


def touched_bytes(step: SizedStep) -> int:
    """Peak in bytes of a CPU step's resident memory: the memory from malloc that it writes to."""
    return step.live_bytes(Level.LOW, block_bytes)


def asked_bytes(step: SizedStep) -> int:
    """Peak in bytes of a CPU step's private writable memory: all memory from malloc, written to or not."""
    return step.live_bytes(Level.LIKELY, block_bytes)


def most_bytes(step: SizedStep) -> int:
    """Peak in bytes of a CPU step's memory from malloc, with the largest known scratch memory of oneDNN."""
    return step.live_bytes(Level.HIGH, block_bytes)


def block_bytes(num_bytes: int) -> int:
    """Bytes of the malloc block that a tensor of `num_bytes` takes."""
    if num_bytes < MAPPED_FROM_BYTES:
        return _rounded(num_bytes, _ALIGNMENT_BYTES)
    return _rounded(num_bytes + _OVERHEAD_BYTES, _PAGE_BYTES)


def _rounded(num_bytes: int, multiple: int) -> int:
    return -(-num_bytes // multiple) * multiple
