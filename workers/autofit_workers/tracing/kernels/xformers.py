"""Scratch memory of FlashAttention's operators as xformers calls them.

xformers' operators have fake functions for their outputs. They run FlashAttention's code, or PyTorch's copy
of it, and return only some of its outputs; the rest is scratch memory here. Sources are
xformers/ops/fmha/flash.py and flash3.py of github.com/facebookresearch/xformers, 0.0.29 to 0.0.34. xformers'
other kernels, `cutlassF` and `cutlassB`, are PyTorch's own operators. Since 0.0.35 all its kernels are those
of the library mslk.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autofit_workers.spec.trace import Scratch
from autofit_workers.tracing.kernels import flash_attn2, flash_attn3
from autofit_workers.tracing.kernels.registry import Kernel

_FLOAT_BYTES = 4


def _forward_scratch(
    query: Tensor, key: Tensor, cu_seqlens_q: Tensor | None, p: float, **_rest: Any
) -> tuple[Scratch, ...]:
    flash_attn2.require_taken(query)
    return flash_attn2.forward_scratch(query, key, dropout_p=p) if cu_seqlens_q is None else ()


def _backward_scratch(
    query: Tensor, key: Tensor, cu_seqlens_q: Tensor | None, **_rest: Any
) -> tuple[Scratch, ...]:
    sums = flash_attn2.row_sums(query, cu_seqlens_q)
    beside = (
        flash_attn2.backward_scratch(query, key, deterministic=False)
        if cu_seqlens_q is None
        else flash_attn2.packed_backward_scratch(query, key, cu_seqlens_q, deterministic=False)
    )
    return (Scratch(formula="elements", dimensions=sums, element_bytes=_FLOAT_BYTES), *beside)


def _backward_scratch_of_3(
    query: Tensor, key: Tensor, value: Tensor, window_left: int, window_right: int, **rest: Any
) -> tuple[Scratch, ...]:
    return flash_attn3.backward_scratch(
        q=query,
        k=key,
        v=value,
        window_size_left=window_left,
        window_size_right=window_right,
        softcap=0.0,
        **rest,
    )


KERNELS = {
    "xformers_flash::flash_fwd": Kernel(scratch=_forward_scratch, by_name=True),
    "xformers_flash::flash_bwd": Kernel(scratch=_backward_scratch, by_name=True),
    "xformers_flash3::flash_fwd": Kernel(),
    "xformers_flash3::flash_bwd": Kernel(scratch=_backward_scratch_of_3, by_name=True),
}
