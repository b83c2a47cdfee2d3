"""Tile sizes of cuBLAS's kernels, by data type and architecture, from tiles.toml."""

from __future__ import annotations

import functools
from typing import Any

from autofit_workers.replay.time.products import TILES, Tile
from autofit_workers.replay.time.tables import text_of
from autofit_workers.spec.pythons import read_toml


@functools.cache
def tiles_of(dtype: str, architecture: str, *, is_batched: bool) -> tuple[Tile, ...]:
    """Tile sizes of cuBLAS's kernels for matrix products in a data type.

    Args:
        architecture: `sm_XY`; an unknown one has the tiles of the next older one.
        is_batched: whether the kernels compute a batch of products at once.
    """
    by_architecture = _table().get(dtype, {}).get("batched" if is_batched else "single", {})
    older = [each for each in by_architecture if _capability(each) <= _capability(architecture)]
    if not older:
        return TILES
    return tuple((width, height) for width, height in by_architecture[max(older, key=_capability)])


def _capability(architecture: str) -> int:
    digits = architecture.removeprefix("sm_")
    return int(digits) if digits.isdigit() else 0


@functools.cache
def _table() -> dict[str, Any]:
    return read_toml(text_of("tiles.toml"))
