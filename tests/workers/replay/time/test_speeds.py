"""What cards keep up, and which tiles cuBLAS has for them."""

from __future__ import annotations

import pytest

from autofit.hardware.chips import device_properties
from autofit.hardware.gpus import find_gpu
from autofit_workers.replay.time.products import TILES
from autofit_workers.replay.time.speeds import speeds_of, sustained
from autofit_workers.replay.time.tiles import tiles_of


def test_a_card_without_rows_of_a_usual_power_keeps_all() -> None:
    everything = {"vector": 1.0, "tensor": 1.0, "memory": 1.0, "cut": 1.0}
    assert sustained("Tesla V100-SXM2-16GB", "sm_70") == everything


def test_units_that_can_issue_nothing_beside_products_keep_less() -> None:
    assert sustained("NVIDIA H100 80GB HBM3", "sm_90")["vector"] < 1


def test_a_card_of_low_power_keeps_what_its_class_does() -> None:
    assert sustained("NVIDIA L4", "sm_89")["vector"] < 0.7


def test_a_card_with_rows_keeps_what_they_say_and_else_what_its_class_does() -> None:
    t4, l4 = sustained("Tesla T4", "sm_75"), sustained("NVIDIA L4", "sm_89")
    assert t4["tensor"] == l4["tensor"]
    assert t4["vector"] > l4["vector"]


def test_tiles_are_those_of_the_next_older_architecture() -> None:
    newer, known = (tiles_of("float32", each, is_batched=True) for each in ("sm_90", "sm_80"))
    assert newer == known != tiles_of("float32", "sm_75", is_batched=True)


def test_tiles_are_free_where_nothing_is_known() -> None:
    assert tiles_of("float16", "sm_90", is_batched=False) == TILES
    assert tiles_of("float32", "cpu", is_batched=True) == TILES


def test_of_two_cards_of_a_generation_the_one_with_more_watts_has_the_higher_rated_speed() -> None:
    h100, h200 = (speeds_of(device_properties(find_gpu(key))) for key in ("h100-80g", "h200"))
    assert h200.rated_flops("bfloat16") == pytest.approx(h100.rated_flops("bfloat16")), "both have 700 W"
    b200, gb200 = (speeds_of(device_properties(find_gpu(key))) for key in ("b200", "gb200"))
    of_unit = (1200 / 152) / (1000 / 148)
    per_unit = [each.rated_flops("bfloat16") / each.num_units for each in (b200, gb200)]
    assert per_unit[1] / per_unit[0] == pytest.approx(of_unit**0.5)


def test_fp8_is_twice_as_fast_as_bfloat16_where_tensor_cores_have_it() -> None:
    h100, a100 = (speeds_of(device_properties(find_gpu(key))) for key in ("h100-80g", "a100-80g"))
    assert h100.rated_flops("float8_e4m3fn") == 2 * h100.rated_flops("bfloat16")
    assert "float8_e4m3fn" not in a100.flops
    assert h100.units("float8_e4m3fn")[:2] == ("hopper float8", "hopper tensor")
    assert a100.units("bfloat16") == ("ampere tensor", "tensor")
    assert a100.units("tf32") == ("tensor",), "no rows of it had a part in the generation's constants"


def test_tensor_cores_that_were_cut_for_export_are_so_at_any_clock() -> None:
    h20 = speeds_of(device_properties(find_gpu("h20")))
    assert 130e12 < h20.rated_flops("bfloat16") < 180e12, "148 TFLOPS by its data sheet"
