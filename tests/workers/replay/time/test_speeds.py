"""What cards keep up, and which tiles cuBLAS has for them."""

from __future__ import annotations

from autofit_workers.replay.time.products import TILES
from autofit_workers.replay.time.speeds import sustained
from autofit_workers.replay.time.tiles import tiles_of


def test_a_card_without_rows_of_a_usual_power_keeps_all() -> None:
    assert sustained("Tesla V100-SXM2-16GB", "sm_70") == {"vector": 1.0, "tensor": 1.0, "memory": 1.0}


def test_units_that_can_issue_nothing_beside_products_keep_less() -> None:
    assert sustained("NVIDIA H100 80GB HBM3", "sm_90")["vector"] < 1


def test_a_card_of_low_power_keeps_what_its_class_does() -> None:
    assert sustained("NVIDIA L4", "sm_89")["vector"] < 0.7


def test_a_card_with_rows_keeps_what_they_say_and_else_what_its_class_does() -> None:
    t4, l4 = sustained("Tesla T4", "sm_75"), sustained("NVIDIA L4", "sm_89")
    assert t4["tensor"] == l4["tensor"]
    assert t4["memory"] < l4["memory"]


def test_tiles_are_those_of_the_next_older_architecture() -> None:
    newer, known = (tiles_of("float32", each, is_batched=True) for each in ("sm_90", "sm_80"))
    assert newer == known != tiles_of("float32", "sm_75", is_batched=True)


def test_tiles_are_free_where_nothing_is_known() -> None:
    assert tiles_of("float16", "sm_90", is_batched=False) == TILES
    assert tiles_of("float32", "cpu", is_batched=True) == TILES
