"""Sizes of FlashAttention's scratch memory that depend on the card."""

from __future__ import annotations

import pytest

from autofit_workers.replay.curve.scratch.flash import CAPPED, CAUSAL, FULL
from autofit_workers.replay.curve.scratch.formulas import Platform, scratch_bytes
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.trace import Scratch


def taken(formula: str, *dimensions: int, card: str = "sm_80") -> int:
    scratch = Scratch(formula=formula, dimensions=dimensions, element_bytes=4)
    return scratch_bytes(scratch, Platform(Architecture.of(card), (2, 13)))


def test_keys_are_split_where_few_blocks_are_at_work() -> None:
    many, few = (1, 32, 4096, 4096, 128), (1, 1, 64, 4096, 128)
    assert taken("flash2_forward_splits", *many, 1) == 0
    # One block, 32 of keys, 216 half multiprocessors: every split more is one more at work.
    assert taken("flash2_forward_splits", *few, 1) == 32 * 64 * 4


def test_a_deterministic_backward_pass_has_sums_for_every_multiprocessor_of_a_head() -> None:
    one = 256 * 8 * 64 * 4
    assert taken("flash2_query_gradient_splits", 2, 8, 256, 64) == 7 * one  # of 108 on sm_80
    assert taken("flash2_query_gradient_splits", 2, 8, 256, 64, card="sm_90") == 9 * one  # of 132


@pytest.mark.parametrize(
    ("card", "width", "mask", "tile"),
    [
        ("sm_90", 64, CAUSAL, 128),
        ("sm_90", 64, CAUSAL | CAPPED, 96),
        ("sm_90", 96, FULL, 64),
        ("sm_90", 128, FULL, 80),
        ("sm_90", 128, CAUSAL, 64),
        ("sm_80", 64, FULL, 128),
        ("sm_89", 256, FULL, 32),
    ],
)
def test_rows_are_padded_to_the_tiles_of_a_card(card: str, width: int, mask: int, tile: int) -> None:
    call = (3, 8, tile + 1, width, mask)
    assert taken("flash3_rows", *call, 1, card=card) == 3 * 8 * 2 * tile * 4
    assert taken("flash3_packed_rows", *call, width, card=card) == 8 * 5 * tile * width * 4


_KEY_TILES = [("sm_90", 128, 128), ("sm_90", 192, 96), ("sm_89", 128, 96)]


@pytest.mark.parametrize(("card", "width", "tile"), _KEY_TILES)
def test_keys_are_padded_to_theirs(card: str, width: int, tile: int) -> None:
    assert taken("flash3_keys", 2, 4, tile - 1, width, card=card) == 2 * 4 * tile * width * 4
    assert taken("flash3_packed_keys", 2, 4, tile, width, card=card) == 4 * 3 * tile * width * 4
