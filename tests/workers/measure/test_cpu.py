"""The CPU probe's own parts: what counts as out of memory, the limit, the resident set."""

from __future__ import annotations

import errno
import resource

import pytest
import torch

from workers.measure import cpu
from workers.protocol import Peaks

GIB = 2**30
ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("out of memory"),
        RuntimeError(ALLOCATOR),
        RuntimeError("std::bad_alloc"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_what_names_memory_by_type_or_identifier_is_out_of_memory(error):
    assert cpu.is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("out of memory"),
        RuntimeError("could not execute a primitive"),
        RuntimeError("can't allocate memory"),
        SystemError("returned NULL without setting an exception"),
        NotImplementedError(ALLOCATOR),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("std::bad_alloc"),
    ],
)
def test_what_only_sounds_like_it_is_not(error):
    assert not cpu.is_out_of_memory(error)


def test_the_limit_makes_allocations_fail_for_real_and_is_lifted_after():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(RuntimeError) as caught, cpu.data_limit(4 * GIB):
        torch.empty(8 * GIB, dtype=torch.uint8)
    assert cpu.is_out_of_memory(caught.value)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert torch.empty(8 * GIB, dtype=torch.uint8).numel() == 8 * GIB


def test_no_limit_leaves_the_process_as_it_is():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with cpu.data_limit(None):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_limit_never_raises_one_that_is_already_there():
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    with cpu.data_limit(8 * GIB), cpu.data_limit(16 * GIB):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 8 * GIB
    assert resource.getrlimit(resource.RLIMIT_DATA) == (soft, hard)


def test_the_peak_resident_set_holds_what_was_used_since_its_reset():
    num_bytes = 200 * 2**20
    meter = cpu.ResidentSet()
    meter.reset()
    idle_bytes = meter.peaks().device_bytes
    torch.ones(num_bytes, dtype=torch.uint8)  # dropped at once: only the peak tells
    used_bytes = meter.peaks().device_bytes
    assert used_bytes - idle_bytes == pytest.approx(num_bytes, rel=0.1)
    meter.reset()
    if meter.counts == "steps":
        assert meter.peaks().device_bytes < used_bytes - num_bytes // 2
    else:
        assert meter.peaks().device_bytes == used_bytes


def test_a_peak_beyond_the_budget_does_not_fit_even_where_the_limit_allowed_it():
    small, large = Peaks(device_bytes=100), Peaks(device_bytes=101)
    assert cpu.beyond(100, small, small) is None
    assert cpu.beyond(None, large) is None
    assert "101 bytes is beyond the budget of 100" in cpu.beyond(100, large, small)
    assert "101 bytes is beyond the budget of 100" in cpu.beyond(100, small, large)


def test_the_clock_runs_the_step():
    ran = []
    assert cpu.ResidentSet().seconds_of(lambda: ran.append(1)) > 0
    assert ran == [1]


def test_memory_that_was_never_written_to_is_private_and_not_resident():
    meter = cpu.ResidentSet()
    meter.reset()
    before = meter.peaks()
    block = torch.empty(9 * GIB, dtype=torch.uint8)  # more than any test before: its peak is the process's
    after = meter.peaks()
    assert after.private_bytes is not None
    assert after.private_bytes >= block.nbytes
    assert after.device_bytes - before.device_bytes < GIB // 4
