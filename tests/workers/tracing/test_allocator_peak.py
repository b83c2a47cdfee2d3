"""The peak of PyTorch's CPU allocator, against steps whose blocks are known."""

from __future__ import annotations

import gc

import pytest
import torch

from autofit_workers.tracing.host.allocator_peak import allocator_peak_bytes, live_bytes, peak_of

MIB = 2**20


def block(num_mib: int) -> torch.Tensor:
    return torch.empty(num_mib * MIB, dtype=torch.uint8)


def test_the_highest_sum_is_the_peak():
    assert peak_of([3, 4, -3, 2, -6]) == 7
    assert peak_of([-2, 1]) == 0


def test_what_was_alive_before_and_what_is_alive_at_once_is_counted_and_no_more():
    def step():
        first = block(64)
        del first
        second, third = block(16), block(32)
        del second, third

    kept = block(8)
    before_bytes = live_bytes(gc.get_objects())
    assert allocator_peak_bytes(step) == before_bytes + 64 * MIB
    assert before_bytes >= kept.nbytes


def test_the_profiler_prints_nothing_into_the_log(capfd):
    kept = [block(1)]
    allocator_peak_bytes(lambda: (kept.clear(), block(1)))
    assert capfd.readouterr() == ("", "")


def test_a_step_without_memory_is_an_error_to_be_told():
    with pytest.raises(RuntimeError, match="no memory events"):
        allocator_peak_bytes(lambda: None)


def test_each_storage_counts_once_and_other_objects_do_not():
    whole = block(4)
    meta = torch.empty(100, device="meta")
    sparse = torch.eye(3).to_sparse()
    assert live_bytes([whole, whole[1:], whole.view(2, -1), meta, sparse, object(), 1]) == 4 * MIB
