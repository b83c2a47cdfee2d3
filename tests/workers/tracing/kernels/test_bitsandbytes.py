"""What the operators of bitsandbytes take beside their outputs."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autofit_workers.tracing.kernels.following import kernel_of, scratch_of

ROWS, WIDTH, OUT = 2048, 256, 512


def taken(name: str, *args: object) -> list[int]:
    func = getattr(torch.ops.bitsandbytes, name).default
    kernel = kernel_of(func)
    assert kernel is not None
    return [piece.dimensions[0] for piece in scratch_of(kernel, func, args, {})]


@pytest.fixture(autouse=True)
def _library():
    pytest.importorskip("bitsandbytes")
    with FakeTensorMode():
        yield


def test_a_product_with_a_quantized_weight_takes_the_weight_whole() -> None:
    rows = torch.empty(ROWS, WIDTH, dtype=torch.bfloat16)
    weight, scales = torch.empty(OUT * WIDTH // 2, 1, dtype=torch.uint8), torch.empty(OUT * WIDTH // 64)
    call = (rows, weight, (OUT, WIDTH), scales, 64, "nf4")
    assert taken("gemm_4bit", *call) == [2 * OUT * WIDTH]
    quantized = scales.to(torch.uint8)
    assert taken("gemm_4bit", *call, None, quantized) == [4 * 2048, 4 * 2048, 2 * OUT * WIDTH]


def test_a_product_of_int8_is_one_of_int32_first() -> None:
    rows = torch.empty(ROWS, WIDTH, dtype=torch.int8)
    weight = torch.empty(OUT, WIDTH, dtype=torch.int8)
    scales = torch.empty(ROWS), torch.empty(OUT)
    assert taken("int8_scaled_mm", rows, weight, *scales) == [4 * ROWS * OUT]
    assert taken("int8_scaled_mm", rows, weight, *scales, None, torch.bfloat16) == [
        4 * ROWS * OUT,
        2 * ROWS * OUT,
    ]


def test_optimizers_work_in_place() -> None:
    func = torch.ops.bitsandbytes.optimizer_update_8bit_blockwise.default
    kernel = kernel_of(func)
    assert kernel is not None
    assert kernel.scratch is None
