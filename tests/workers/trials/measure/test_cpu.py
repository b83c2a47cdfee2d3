"""The CPU probe's own parts: what counts as out of memory, the limit, the resident set."""

from __future__ import annotations

import errno
import resource

import pytest
import torch

from autofit_workers.spec.errors import InvalidTrialError
from autofit_workers.spec.protocol import Peaks
from autofit_workers.trials.measure import cpu
from autofit_workers.trials.measure.steps import Progress

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
    assert cpu.beyond(100, Progress(first_step=small, steady=small)) is None
    assert cpu.beyond(None, Progress(first_step=large)) is None


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("first_step", "first step"),
        ("steady", "steps"),
        ("evaluation", "evaluation"),
        ("checkpoint", "checkpoint"),
    ],
)
def test_the_stretch_whose_peak_was_beyond_the_budget_is_named(name, phase):
    progress = Progress(**{"first_step": Peaks(device_bytes=100), name: Peaks(device_bytes=101)})
    assert f"101 bytes is beyond the budget of 100 bytes (in {phase})" in cpu.beyond(100, progress)
    assert progress.phase == phase


def fails_under_a_limit():
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY:
        raise RuntimeError("could not execute a primitive")


def test_what_fails_under_the_limit_alone_ran_out_of_memory():
    meter = cpu.ResidentSet()
    assert meter.attempt(fails_under_a_limit) is None
    with cpu.data_limit(64 * GIB):
        with pytest.raises(MemoryError, match="could not execute a primitive; it completes without"):
            meter.attempt(fails_under_a_limit)
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 64 * GIB


def raising(error):
    def action():
        raise error

    return action


def test_what_a_workload_cannot_do_is_a_reason_and_no_error():
    with cpu.data_limit(64 * GIB):
        reason = cpu.ResidentSet().attempt(raising(RuntimeError("no loss in evaluation\ndetails")))
    assert reason == "RuntimeError: no loss in evaluation"


@pytest.mark.parametrize("error", [MemoryError(), InvalidTrialError("another batch size")])
def test_memory_and_invalid_work_are_errors_of_an_attempt_too(error):
    with pytest.raises(type(error)):
        cpu.ResidentSet().attempt(raising(error))


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
