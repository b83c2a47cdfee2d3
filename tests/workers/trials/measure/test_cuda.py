"""What of the CUDA probe can be known without a GPU; the rest is in tests/gpu."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.spec.errors import DeviceError
from autofit_workers.trials.measure import cuda
from autofit_workers.trials.measure.card import Card

GIB = 2**30


@given(st.integers(2**21, 300 * GIB), st.data())
def test_the_allowed_fraction_is_exactly_the_budget(total_bytes, data):
    budget_bytes = data.draw(st.integers(0, total_bytes - 1))
    assert int(cuda.allowed_fraction(budget_bytes, total_bytes) * total_bytes) == budget_bytes


@given(st.integers(2**21, 300 * GIB), st.integers(0, 300 * GIB))
def test_a_budget_beyond_the_card_is_the_whole_card(total_bytes, more_bytes):
    assert cuda.allowed_fraction(total_bytes + more_bytes, total_bytes) == 1.0


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
        Card.at_hand()
    assert cuda.device_at_hand() is None
