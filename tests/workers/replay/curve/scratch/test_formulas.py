"""Sizes of scratch memory on a card and a release."""

from __future__ import annotations

import pytest

from autofit_workers.replay.curve.corrections import CORRECTION_NAMES, CORRECTIONS
from autofit_workers.replay.curve.scratch.formulas import Platform, scratch_bytes
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.trace import Scratch
from autofit_workers.spec.versions import parse_release

MIB = 1024**2


def size(
    formula: str,
    *dimensions: int,
    element_bytes: int = 4,
    capability: int = 80,
    release: tuple[int, int] = (2, 13),
) -> int:
    scratch = Scratch(formula=formula, dimensions=dimensions, element_bytes=element_bytes)
    return scratch_bytes(scratch, Platform(Architecture.of(f"sm_{capability}"), release))


@pytest.mark.parametrize(
    ("capability", "release", "expected"),
    [
        (70, (2, 13), 8_519_680),
        (80, (2, 6), 8_519_680),
        (90, (2, 4), 32 * MIB),
        (90, (2, 13), 32 * MIB),
        (100, (2, 11), 8_519_680),
        (100, (2, 12), 32 * MIB),
        (120, (2, 13), 32 * MIB),
        (89, (2, 13), 8_519_680),
    ],
)
def test_cublas_takes_more_on_new_cards_of_new_releases(capability, release, expected):
    assert size("cublas", capability=capability, release=release) == expected


def test_flash_attention_pads_rows_to_128_and_heads_to_32():
    assert size("flash_rows", 4, 2, 129) == 4 * 2 * 256 * 4
    assert size("flash_query_gradient", 4, 2, 6, 33) == 4 * 2 * 128 * 64 * 4
    assert size("flash_query_gradient", 4, 2, 128, 200) == 4 * 2 * 128 * 256 * 4


def test_efficient_attention_has_a_lock_for_every_tile():
    assert size("efficient_query_gradient", 4, 2, 197, 64) == 4 * 2 * 4 * (64 * 64 + 4) * 4
    assert size("efficient_query_gradient", 4, 2, 197, 96) == 4 * 2 * 2 * 2 * (128 * 64 + 4) * 4
    assert size("efficient_query_gradient", 4, 2, 197, 96, capability=86) == 4 * 2 * 4 * 2 * 4100 * 4


def test_layer_norm_has_partial_sums_for_many_rows_only():
    assert size("layer_norm_tiles", 1024, 64, 96) == 0
    assert size("layer_norm_tiles", 1025, 64, 96) == 2050 * 96 * 4
    assert size("layer_norm_tiles", 1025, 64, 96, release=(2, 6)) == 0
    assert size("layer_norm_tiles", 1025, 64, 4096) == 0  # wide enough to fill the card by columns


def test_an_embeddings_indices_are_sorted_above_3072_of_them():
    assert size("embedding_indices", 4, 768, element_bytes=8) == 0
    assert size("embedding_indices", 4, 769, element_bytes=8) == 4 * 769 * 8
    assert size("embedding_segments", 50, 4, 769, element_bytes=8) == 50 * 8
    assert size("embedding_partial_sums", 50, 16, 4, 769) == (307 + 50) * 16 * 4
    assert size("embedding_partial_sums", 50, 16, 4, 768) == 0


@pytest.mark.parametrize(
    ("num_segments", "length", "of_each"),
    [(128, 4096, 0), (128, 8192, 8 + 12), (127, 8192, 16 + 4 + 12), (1, 8192, 8 + 12)],
)
def test_long_rows_are_sorted_in_buffers(num_segments, length, of_each):
    assert size("sort", num_segments, length) == num_segments * length * of_each


def test_a_copy_is_as_large_as_its_tensor():
    assert size("elements", 4, 3, 8, element_bytes=2) == 192


def test_a_release_is_read_from_a_version():
    assert parse_release("2.13.0+cpu") == (2, 13)


def test_corrections_have_names_of_their_own_and_a_line_each():
    assert len(CORRECTION_NAMES) == len(CORRECTIONS)
    assert all(c.explanation and "\n" not in c.explanation for c in CORRECTIONS)
