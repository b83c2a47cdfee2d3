"""Text of command lines for a user to copy, with the options that were typed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any


def as_typed(command: str, options: Mapping[str, Any]) -> str:
    """Text of an autofit command line with `options` by parameter name, without those that are not set."""
    words = []
    for name, value in options.items():
        if value in (None, False, ()):
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [f"--{name.replace('_', '-')}", *([] if each is True else [str(each)])]
    return shlex.join(["autofit", command, *words])
