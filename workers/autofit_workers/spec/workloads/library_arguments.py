"""Arguments for a library's model in a reference: `timm:NAME?img_size=384&drop_path_rate=0.1`.

This module needs the standard library only, like all code that reads references.
"""

from __future__ import annotations

import ast
import re
from typing import Any

_WORDS = {"true": True, "false": False, "none": None, "null": None}
# Separator of two arguments; a comma may also belong to a tuple.
_BETWEEN = re.compile(r"[&,](?=\s*\w+\s*=)")
_EXAMPLE = "timm:vit_base_patch16_224?img_size=384&drop_path_rate=0.1"


def split_arguments(text: str) -> tuple[str, dict[str, Any]]:
    """Splits a reference into the model's name and the arguments that follow it.

    Raises:
        ValueError: an argument is not written `KEY=VALUE`, or is given twice.
    """
    name, mark, told = text.partition("?")
    arguments: dict[str, Any] = {}
    for piece in _BETWEEN.split(told) if mark else ():
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not value or not key.isidentifier():
            raise ValueError(f"{piece!r} is no KEY=VALUE, as in '{_EXAMPLE}'")
        if key in arguments:
            raise ValueError(f"it says {key} twice: leave one of them out")
        arguments[key] = _value(value)
    return name, arguments


def _value(text: str) -> Any:
    """Argument's value: a Python literal, or `true`, `false`, `none`, `null`; else the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
