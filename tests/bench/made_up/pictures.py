"""Made-up pictures: coloured clouds, as JPEG or PNG."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

_NUM_DIFFERENT = 24  # of one size


@cache
def encoded(width: int, height: int, seed: int, kind: str = "JPEG") -> bytes:
    grid = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC).save(file, kind)
    return file.getvalue()


def numbered(number: int, width: int, height: int, kind: str = "JPEG") -> bytes:
    return encoded(width, height, number % _NUM_DIFFERENT, kind)


def write(path: Path, number: int, width: int, height: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(numbered(number, width, height))
