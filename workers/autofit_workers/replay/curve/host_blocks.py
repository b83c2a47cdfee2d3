"""Memory of a step on a CPU: malloc blocks of its tensors, and how much of them is written to.

PyTorch keeps no memory on the CPU: each tensor is a block of malloc's, freed as the tensor is
(c10/core/impl/alloc_cpu.cpp, which aligns to 64 bytes). In a trial's process malloc maps a large
block by itself and gives it back at once (`autofit_workers.trials.isolate`).
"""

from __future__ import annotations

import dataclasses

from autofit_workers.replay.curve.conditions import Level
from autofit_workers.replay.curve.peak_curve import PeakCurve

_ALIGNMENT_BYTES = 64
_PAGE_BYTES = 4096
MAPPED_FROM_BYTES = 131072  # M_MMAP_THRESHOLD of a trial's process
# `_int_memalign` of glibc's malloc asks for the alignment and the smallest chunk, 32 bytes, on top;
# either kind of block has a header of 16.
_OVERHEAD_BYTES = _ALIGNMENT_BYTES + 32 + 16


class HostBlocks:
    """Peak memory of a step on a CPU, from its malloc blocks, at any batch size.

    Args:
        curve: of traces for `autofit_workers.spec.protocol.HOST_ARCHITECTURE`.
    """

    def __init__(self, curve: PeakCurve) -> None:
        self._curve = curve

    @property
    def needs_traces(self) -> bool:
        """Whether each batch size needs its own trace, because the step allocates differently."""
        return self._curve.needs_traces

    @property
    def identity(self) -> str:
        """Identity string of the step's trace, without the sizes measured on the machine."""
        trace = self._curve.trace
        tensors = tuple(a for a in trace.allocations if a.span_bytes is None)
        return dataclasses.replace(trace, allocations=tensors, events=(), marks=()).identity

    def touched_bytes(self, batch_size: int) -> int:
        """Peak in bytes of the memory that the step writes to, and that so is resident."""
        return self._curve.at(batch_size).live_bytes(Level.LOW, block_bytes)

    def asked_bytes(self, batch_size: int) -> int:
        """Peak in bytes of memory from malloc, which counts against a limit of private writable memory."""
        return self._curve.at(batch_size).live_bytes(Level.LIKELY, block_bytes)

    def most_bytes(self, batch_size: int) -> int:
        """Peak in bytes of memory from malloc, with the largest known scratch memory of oneDNN."""
        return self._curve.at(batch_size).live_bytes(Level.HIGH, block_bytes)

    def workspace_bytes(self, batch_size: int) -> int:
        """Largest likely scratch memory of any one operator in bytes."""
        return self._curve.at(batch_size).largest_estimate_bytes()


def block_bytes(num_bytes: int) -> int:
    """Bytes of the malloc block that a tensor of `num_bytes` takes."""
    if num_bytes < MAPPED_FROM_BYTES:
        return _rounded(num_bytes, _ALIGNMENT_BYTES)
    return _rounded(num_bytes + _OVERHEAD_BYTES, _PAGE_BYTES)


def _rounded(num_bytes: int, multiple: int) -> int:
    return -(-num_bytes // multiple) * multiple
