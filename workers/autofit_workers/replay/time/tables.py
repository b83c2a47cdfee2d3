"""The data files of this package."""

from __future__ import annotations

import importlib.resources


def text_of(name: str) -> str:
    """What is in one of them, such as `tiles.toml`."""
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
