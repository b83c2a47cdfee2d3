"""How much is computed to know values: all that is small, of what is large the cheap, within limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from autofit_workers.tracing.values.effort import Effort

aten = torch.ops.aten
MASK = torch.bool
MEBI = 2**20


def sized(num_bytes: int, dtype: torch.dtype = MASK) -> Tensor:
    return torch.empty(num_bytes // dtype.itemsize, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("operator", "made", "is_allowed"),
    [
        (aten.convolution.default, sized(4096, torch.float32), True),  # small
        (aten.bitwise_not.default, sized(64 * MEBI), True),
        (aten.index.Tensor, sized(64 * MEBI, torch.int64), True),
        (aten._to_copy.default, sized(64 * MEBI, torch.float32), True),
        (aten.convolution.default, sized(64 * MEBI, torch.float32), False),
        (aten._fft_r2c.default, sized(64 * MEBI, torch.complex64), False),
    ],
)
def test_of_what_is_large_only_what_is_cheap_is_computed(operator, made, is_allowed):
    assert Effort().allows(operator, [made], [made]) is is_allowed


def test_a_large_operand_of_a_small_result_counts_as_large():
    images = sized(64 * MEBI, torch.float32)
    assert Effort().allows(aten.sum.default, [images], [torch.empty(())])
    assert not Effort().allows(aten.linalg_vector_norm.default, [images], [torch.empty(())])


@pytest.mark.parametrize(("inner", "is_allowed"), [(64, True), (4096, False)])
def test_products_are_computed_as_long_as_they_are_short(inner, is_allowed):
    first, second = torch.empty(2048, inner, device="meta"), torch.empty(inner, 2048, device="meta")
    made = torch.empty(2048, 2048, device="meta")
    assert Effort().allows(aten.mm.default, [first, second], [made]) is is_allowed


def test_real_numbers_leave_masks_their_share_of_what_is_written():
    effort, images, mask = Effort(), sized(512 * MEBI, torch.float32), sized(512 * MEBI)
    allowed = [effort.allows(aten.add.Tensor, [images], [images]) for _ in range(6)]
    assert allowed == [True] * 4 + [False] * 2
    allowed = [effort.allows(aten.bitwise_not.default, [mask], [mask]) for _ in range(10)]
    assert allowed == [True] * 8 + [False] * 2


def test_room_is_there_again_once_values_are_gone():
    effort = Effort()
    first, second = sized(700 * MEBI), sized(700 * MEBI)
    assert effort.hold(first)
    assert not effort.hold(second)
    del first
    assert effort.hold(second)
