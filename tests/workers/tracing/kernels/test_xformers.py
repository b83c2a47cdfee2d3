"""What FlashAttention's operators take as xformers calls them: all that its own return and take."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autofit_workers.spec.trace import Scratch
from autofit_workers.tracing.kernels.flash_attn2 import KERNELS as OF_FLASH_2
from autofit_workers.tracing.kernels.flash_attn3 import KERNELS as OF_FLASH_3
from autofit_workers.tracing.kernels.xformers import KERNELS

HALF = torch.bfloat16
Q, K = torch.empty(2, 200, 8, 64, dtype=HALF), torch.empty(2, 200, 4, 64, dtype=HALF)
PACKED_Q, PACKED_K = Q.flatten(0, 1), K.flatten(0, 1)
LENGTHS = torch.tensor([0, 200, 400], dtype=torch.int32)
_WHOLE, _PACKED = (Q, K, None), (PACKED_Q, PACKED_K, LENGTHS)


def taken(operator: str, kernels: dict[str, Any] = KERNELS, **call: Any) -> list[Scratch]:
    return list(kernels[operator].scratch(**call))


@pytest.mark.parametrize(("q", "k", "lengths"), [_WHOLE, _PACKED])
def test_a_backward_pass_takes_the_sums_of_rows_too(q: Any, k: Any, lengths: Any) -> None:
    call = {"cu_seqlens_q": lengths, "deterministic": False}
    name = (
        "flash_attn::_flash_attn_backward" if lengths is None else "flash_attn::_flash_attn_varlen_backward"
    )
    own = OF_FLASH_2[name]
    assert own.outputs is not None
    sums = own.outputs(q=q, k=k, **call)
    found = taken("xformers_flash::flash_bwd", query=q, key=k, value=k, cu_seqlens_q=lengths)
    assert found[0] == Scratch(formula="elements", dimensions=tuple(sums.shape), element_bytes=4)
    assert found[1:] == taken(name, OF_FLASH_2, q=q, k=k, **call)


def test_a_forward_pass_splits_keys_of_whole_batches_alone() -> None:
    assert len(taken("xformers_flash::flash_fwd", query=Q, key=K, cu_seqlens_q=None, p=0.0)) == 2
    assert taken("xformers_flash::flash_fwd", query=PACKED_Q, key=PACKED_K, cu_seqlens_q=LENGTHS, p=0.0) == []


def test_flash_attention_3_takes_the_same_in_both() -> None:
    call = {
        "cu_seqlens_q": None,
        "cu_seqlens_k": None,
        "max_seqlen_q": 200,
        "max_seqlen_k": 200,
        "is_causal": True,
    }
    found = taken(
        "xformers_flash3::flash_bwd", query=Q, key=K, value=K, window_left=-1, window_right=-1, **call
    )
    windows = {"window_size_left": -1, "window_size_right": -1, "softcap": 0.0}
    own = "flash_attn_3::_flash_attn_backward"
    assert found == taken(own, OF_FLASH_3, q=Q, k=K, v=K, **windows, **call)
