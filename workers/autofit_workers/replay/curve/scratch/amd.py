"""Sizes of operators' scratch memory on AMD's cards.

A trace asks for the memory that NVIDIA's libraries take (`autofit_workers.replay.curve.scratch.formulas`);
here are the sizes that hipBLASLt, hipBLAS and AOTriton take instead. A size that only these libraries know
is given as a range. PyTorch is assumed to take the same backend of attention as on NVIDIA's cards; sizes of
CK, which PyTorch uses only on request, are not known. Files are those of PyTorch 2.13 built for ROCm, in
`aten/src/ATen` unless said otherwise.
"""

from __future__ import annotations

import math

from autofit_workers.replay.curve.scratch.formulas import Platform, scratch_bytes
from autofit_workers.replay.curve.scratch.reductions import Processors, reduction_bytes
from autofit_workers.replay.spans import NO_WORKSPACE, Workspace, between, certain
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.trace import Scratch

_MIB = 1024**2
# cuda/CublasHandlePool.cpp, `parseCUDABlasLtWorkspaceSize` and `parseChosenWorkspaceSize`: hipBLASLt's and
# hipBLAS's workspaces are blocks of their own, each asked for with the first product that the library runs.
_HIPBLASLT_BYTES = 76 * _MIB
_HIPBLAS_BYTES, _HIPBLAS_BYTES_OF_GFX94_AND_95 = 32 * _MIB, 128 * _MIB
# AOTriton 0.11, modules/flash/aot/aiter_bwd.py: architectures with kernels that sum a gradient in float32.
_ADDS_UP_IN_FLOAT32 = ("gfx942", "gfx950")
_WAVE = 64
# Compute units of the largest common card of each architecture, from AMD's data sheets.
_COMPUTE_UNITS = {"gfx90a": 110, "gfx942": 304, "gfx950": 256, "gfx1100": 96, "gfx1201": 64}
_FEWEST_COMPUTE_UNITS = 60
_FEWEST_ROWS = 128


def scratch_span(correction: str, scratch: Scratch, platform: Platform) -> Workspace:
    """Range of bytes that one scratch allocation takes on an AMD card.

    Args:
        correction: name of the kind of scratch memory, see `autofit_workers.replay.curve.corrections`.
        scratch: the allocation, with NVIDIA's formula for its size.
        platform: card and PyTorch release.
    """
    card, num_bytes = platform.card, math.prod(scratch.dimensions) * scratch.element_bytes
    match correction, scratch.formula:
        case "cublas", _:
            return _products(card)
        case "attention", "flash_rows":
            # native/transformers/hip/flash_attn/aot/mha_all_aot.hip, `mha_bwd_aot`: `softmax_d` and `delta`.
            return certain(2 * num_bytes)
        case "attention", "elements":
            # NVIDIA's kernels take this formula for row sums, for gradients of keys that several heads share,
            # and for a product in float32; AOTriton's kernels need the row sums only.
            return between(0, num_bytes, num_bytes)
        case "attention", _:
            return _query_gradient(num_bytes, card)
        case _:
            return certain(_of_pytorch(correction, scratch, platform))


def _of_pytorch(correction: str, scratch: Scratch, platform: Platform) -> int:
    """Scratch bytes of PyTorch's own kernels on AMD; only reductions and LayerNorm differ from NVIDIA."""
    if correction == "reductions" and scratch.formula == "reduction":
        return reduction_bytes(scratch, _processors(platform.card))
    return _layer_norm_sums(scratch) if correction == "layer_norm" else scratch_bytes(scratch, platform)


def _processors(card: Architecture) -> Processors:
    """Compute units of an AMD card and their limits, as native/cuda/Reduce.cuh built for ROCm uses them."""
    warp = _WAVE if card.name.startswith("gfx9") else 32
    num = _COMPUTE_UNITS.get(card.name, _FEWEST_COMPUTE_UNITS)
    return Processors(num=num, threads=2048, warp=warp, fewest_values=128, fewest_shares=64)


def _products(card: Architecture) -> Workspace:
    """Range of the workspace of matrix products in bytes: that of hipBLASLt, of hipBLAS, or both.

    hipBLASLt is preferred on these cards (`getHipblasltPreferredArchs` of cuda/detail/CUDAHooks.cpp); hipBLAS
    runs products that hipBLASLt cannot, float64, and on gfx90a float16 in backward in releases with the fix
    of pytorch/pytorch#182952 (`gemm_internal` and `bgemm_internal` of cuda/CUDABlas.cpp). Only the libraries
    know whether a step needs one of them or both.
    """
    hipblas = _HIPBLAS_BYTES_OF_GFX94_AND_95 if card.name.startswith(("gfx94", "gfx95")) else _HIPBLAS_BYTES
    return between(min(hipblas, _HIPBLASLT_BYTES), _HIPBLASLT_BYTES, _HIPBLASLT_BYTES + hipblas)


def _query_gradient(num_bytes: int, card: Architecture) -> Workspace:
    """Range of bytes of AOTriton's float32 query gradient `DQ_ACC`; 0 on cards whose kernels lack it.

    native/transformers/cuda/attention_backward.cu and native/transformers/hip/aotriton_adapter.h,
    `mklazy_fp32zeros`.

    Args:
        num_bytes: bytes of the gradient if it is allocated.
        card: architecture of the card.
    """
    return between(0, num_bytes, num_bytes) if card.name in _ADDS_UP_IN_FLOAT32 else NO_WORKSPACE


def _layer_norm_sums(scratch: Scratch) -> int:
    """Bytes of LayerNorm's partial sums in backward: a row for each lane of a wave.

    native/cuda/layer_norm_kernel.cu, `cuComputePartGradGammaBeta`.
    """
    *rows, width = scratch.dimensions
    return 0 if math.prod(rows) < _FEWEST_ROWS else _WAVE * width * max(scratch.element_bytes, 4)
