"""Scratch memory of bitsandbytes' operators, which have fake functions of their own.

Sources are backends/cuda/ops.py and backends/default/ops.py of release 0.50.2. Most operators need no scratch
memory; that of the others is taken to be alive at the same time. Outlier columns of LLM.int8() are taken to
be none: they are some thousandths of all columns (Dettmers et al., 2022), and their number depends on values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from autofit_workers.tracing.kernels.registry import Kernel


def _dequantized(rows: Any, _weight: Any, shape: Sequence[int], _scales: Any, *rest: Any) -> tuple[int, ...]:
    """Scratch bytes of a 4-bit product: the dequantized weight, and dequantized scales twice.

    Scales that are quantized themselves are dequantized to float32, before and after an offset is added.
    Source: `_dequant_linear_fallback`. For few rows a kernel needs none of this, but how few depends on the
    card (`_gemm_4bit_use_custom_cuda`: some hundreds, for small weights up to 1536), so it is counted always.
    """
    _block_size, _kind, _bias, quantized_scales, *_ = rest
    of_scales = () if quantized_scales is None else (4 * quantized_scales.numel(),) * 2
    return (*of_scales, math.prod(shape) * rows.element_size())


def _product(rows: Any, weight: Any, *rest: Any) -> tuple[int, ...]:
    """Scratch bytes of an int8 product: int32 result, and a float16 copy if the output has another dtype."""
    *_, dtype = rest
    num_elements = rows.numel() // rows.shape[-1] * weight.shape[0]
    return 4 * num_elements, 2 * num_elements if dtype not in (None, torch.float16) else 0


def _as_half(product: Any, _row_scales: Any, _column_scales: Any, dtype: Any, *_bias: Any) -> int:
    """Scratch bytes of dequantizing an int8 product: a float16 copy, if the output has another dtype."""
    return 0 if dtype in (None, torch.float16) else 2 * product.numel()


def _outliers(rows: Any, threshold: float) -> tuple[int, ...]:
    """Scratch bytes of finding outliers: absolute values, and a mask of those above the threshold."""
    return (rows.nbytes, rows.numel()) if threshold > 0 else ()


def _rows_in_int8(rows: Any, threshold: float = 0.0) -> tuple[Any, Any, Any]:
    """Outputs of `int8_vectorwise_quant`: rows in int8, a scale per row, and indices of outlier columns."""
    scales = rows.new_empty(rows.numel() // rows.shape[-1], dtype=torch.float32)
    columns = rows.new_empty(0, dtype=torch.int64) if threshold > 0 else None
    return torch.empty_like(rows, dtype=torch.int8), scales, columns


def _mixed_product(rows: Any, quantized: Any, weight: Any, *_rest: Any) -> tuple[Any, Any]:
    """Outputs of `int8_mixed_scaled_mm`: the product, and an empty tensor for columns with outliers."""
    return rows.new_empty(*quantized.shape[:-1], weight.shape[0]), rows.new_empty(0)


def _mixed_scratch(rows: Any, quantized: Any, weight: Any, *_rest: Any) -> tuple[int, ...]:
    return _product(quantized, weight, rows.dtype)


def _two_quotients(rows: Any, *_threshold: Any) -> int:
    """Scratch bytes of `int8_double_quant`: two temporaries of the input's size at a time."""
    return int(2 * rows.nbytes)


_TAKE_NOTHING = (
    "int8_linear_matmul int8_vectorwise_dequant dequantize_4bit quantize_4bit dequantize_blockwise "
    "quantize_blockwise gemv_4bit optimizer_update_32bit optimizer_update_8bit_blockwise"
)
KERNELS = {
    **{f"bitsandbytes::{name}": Kernel() for name in _TAKE_NOTHING.split()},
    "bitsandbytes::gemm_4bit": Kernel(scratch=_dequantized),
    "bitsandbytes::int8_scaled_mm": Kernel(scratch=_product),
    "bitsandbytes::int8_mm_dequant": Kernel(scratch=_as_half),
    "bitsandbytes::int8_vectorwise_quant": Kernel(outputs=_rows_in_int8, scratch=_outliers),
    "bitsandbytes::int8_mixed_scaled_mm": Kernel(outputs=_mixed_product, scratch=_mixed_scratch),
    "bitsandbytes::int8_double_quant": Kernel(scratch=_two_quotients),
}
