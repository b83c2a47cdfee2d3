"""What of the CUDA probe can be known without a GPU; the rest is in tests/gpu."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.errors import DeviceError
from workers.measure import cuda
from workers.protocol import Evidence

GIB = 2**30
A100_40G_BYTES, H200_BYTES, T4_BYTES, V100_16G_BYTES = 42298834944, 150109880320, 15637086208, 16928342016


@given(st.integers(2**21, 300 * GIB), st.data())
def test_the_allowed_fraction_is_exactly_the_budget(total_bytes, data):
    budget_bytes = data.draw(st.integers(0, total_bytes - 1))
    assert int(cuda.allowed_fraction(budget_bytes, total_bytes) * total_bytes) == budget_bytes


@given(st.integers(2**21, 300 * GIB), st.integers(0, 300 * GIB))
def test_a_budget_beyond_the_card_is_the_whole_card(total_bytes, more_bytes):
    assert cuda.allowed_fraction(total_bytes + more_bytes, total_bytes) == 1.0


@pytest.mark.parametrize("total_bytes", [4 * GIB, 8 * GIB, T4_BYTES, 24 * GIB, H200_BYTES])
def test_a_cards_own_budget_is_measured(total_bytes):
    usable_bytes = total_bytes - 450 * 2**20 - total_bytes * 3 // 100
    assert cuda.evidence_of(usable_bytes, total_bytes) is Evidence.MEASURED
    assert cuda.evidence_of(None, total_bytes) is Evidence.MEASURED


@pytest.mark.parametrize(
    ("budgeted_bytes", "total_bytes"),
    [(16 * GIB, H200_BYTES), (A100_40G_BYTES, 48 * GIB), (T4_BYTES, V100_16G_BYTES), (8 * GIB, 12 * GIB)],
)
def test_a_smaller_cards_budget_is_emulated(budgeted_bytes, total_bytes):
    usable_bytes = budgeted_bytes - 450 * 2**20 - budgeted_bytes * 3 // 100
    assert cuda.evidence_of(usable_bytes, total_bytes) is Evidence.EMULATED


def accelerator_error(code: int) -> RuntimeError:
    error = torch.AcceleratorError("CUDA error")
    error.error_code = code
    return error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        accelerator_error(2),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    ],
)
def test_the_devices_own_errors_of_memory_are_out_of_memory(error):
    assert cuda.is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        accelerator_error(700),  # an illegal address
        torch.AcceleratorError("CUDA error"),
        RuntimeError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        MemoryError(),
    ],
)
def test_other_errors_are_not(error):
    assert not cuda.is_out_of_memory(error)


def test_a_history_is_named_by_its_actions_and_sizes_alone():
    events = [
        {"action": "alloc", "size": 512, "addr": 1, "frames": []},
        {"action": "free_completed", "size": 512, "addr": 1, "frames": []},
    ]
    elsewhere = [{**event, "addr": 9} for event in events]
    larger = [{**events[0], "size": 1024}, events[1]]
    digest = cuda.history_digest(events)
    assert digest["history_events"] == "2"
    assert digest == cuda.history_digest([*elsewhere, {"action": "snapshot", "size": 0}])
    assert digest != cuda.history_digest(larger)
    assert digest != cuda.history_digest(events[::-1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_the_probe_says_what_else_can_be_done():
    with pytest.raises(DeviceError, match="--device cpu"):
        cuda.Card.at_hand()
    assert cuda.device_at_hand() is None
