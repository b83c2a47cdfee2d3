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
    """Splits a reference to a library's model, such as `timm:NAME?img_size=384`, into name and arguments.

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
    """Value of an argument in a reference: a Python literal, a boolean, None, or else the text itself.

    `true`, `false`, `none` and `null` are read in any case.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
