"""Sizes of scratch memory on AMD's cards."""

from __future__ import annotations

import pytest

from autofit_workers.replay.curve.conditions import Conditions, demands
from autofit_workers.replay.curve.scratch.amd import scratch_span
from autofit_workers.replay.curve.scratch.formulas import Platform, scratch_bytes
from autofit_workers.replay.plans.miopen import MiopenPlans
from autofit_workers.replay.spans import NO_WORKSPACE, Workspace, between, certain
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.trace import Scratch

MIB = 1024**2
RELEASE = (2, 13)
CARDS = ("gfx90a", "gfx942", "gfx950")


def on(card: str, correction: str, formula: str, *dimensions: int, element_bytes: int = 4) -> Workspace:
    scratch = Scratch(formula=formula, dimensions=dimensions, element_bytes=element_bytes)
    return scratch_span(correction, scratch, Platform(Architecture.of(card), RELEASE))


def test_products_take_one_workspace_or_two_and_hipblas_s_is_larger_on_new_cards():
    """CublasHandlePool.cpp: 76 MiB for hipBLASLt; for hipBLAS 32, on gfx94x and gfx95x 128."""
    assert on("gfx90a", "cublas", "cublas") == between(32 * MIB, 76 * MIB, 108 * MIB)
    assert on("gfx942", "cublas", "cublas") == between(76 * MIB, 76 * MIB, 204 * MIB)
    assert on("gfx950", "cublas", "cublas") == on("gfx942", "cublas", "cublas")


def test_the_gradient_of_a_query_is_added_up_in_float32_where_there_are_kernels_for_it():
    size = 4 * 8 * 1024 * 64 * 4
    for formula in ("flash_query_gradient", "efficient_query_gradient"):
        assert on("gfx90a", "attention", formula, 4, 8, 1024, 64) == NO_WORKSPACE
        assert on("gfx942", "attention", formula, 4, 8, 1024, 64) == between(0, size, size)


def test_aotriton_pads_no_rows_and_may_do_without_what_nvidia_s_kernels_take():
    assert on("gfx942", "attention", "flash_rows", 4, 8, 129) == certain(2 * 4 * 8 * 129 * 4)
    assert on("gfx942", "attention", "elements", 4, 8, 129) == between(0, 4 * 8 * 129 * 4, 4 * 8 * 129 * 4)


@pytest.mark.parametrize(("rows", "sums"), [(127, 0), (128, 64), (100_000, 64)])
def test_layer_norm_has_a_row_of_sums_for_each_lane(rows, sums):
    assert on("gfx90a", "layer_norm", "layer_norm_tiles", rows, 96) == certain(sums * 96 * 4)
    half = on("gfx90a", "layer_norm", "layer_norm_tiles", rows, 96, element_bytes=2)
    assert half == certain(sums * 96 * 4)


@pytest.mark.parametrize("card", CARDS)
def test_what_is_pytorch_s_own_takes_the_same_everywhere(card):
    copies = Scratch(formula="elements", dimensions=(8, 96), element_bytes=2)
    sorting = Scratch(formula="embedding_partial_sums", dimensions=(50_000, 96, 8, 1024), element_bytes=4)
    ampere = Platform(Architecture.of("sm_80"), RELEASE)
    for correction, scratch in (("layout_copies", copies), ("embedding_backward", sorting)):
        expected = certain(scratch_bytes(scratch, ampere))
        assert scratch_span(correction, scratch, Platform(Architecture.of(card), RELEASE)) == expected


def test_a_step_is_sized_so_on_a_card_of_amd_s():
    call = ("cublas", Scratch(formula="cublas", dimensions=(), element_bytes=1))
    found = demands((call,), Conditions(architecture="gfx90a"), MiopenPlans(), RELEASE)
    assert found == (between(32 * MIB, 76 * MIB, 108 * MIB),)
