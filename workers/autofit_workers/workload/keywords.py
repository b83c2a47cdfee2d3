"""Finds out which keywords a user's function takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def keyword(function: Callable[..., Any], name: str) -> inspect.Parameter | None:
    """Parameter `name` of a function if it may be given as a keyword; else None."""
    try:
        found = inspect.signature(function).parameters.get(name)
    except (TypeError, ValueError):  # some callables written in C have no signature
        return None
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return found if found is not None and found.kind in kinds else None
