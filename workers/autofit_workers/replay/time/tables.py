"""Reads the data files of the package, such as constants.toml."""

from __future__ import annotations

import importlib.resources


def text_of(name: str) -> str:
    """Text of a data file of this package, such as `tiles.toml`."""
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
