"""Frames of an allocation: its lines of Python, the operator that asked, and whether it is of backward.

PyTorch records frames innermost first. Those of C++ are there where a run recorded `stacks="all"`; the
operator is the innermost one that is more than making a tensor without values. Threads of autograd have no
frames of Python.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MOST_FRAMES = 256  # innermost ones that are looked at
_MOST_CHARACTERS = 1024
_OPERATOR = re.compile(r"at::_ops::(\w{1,80})::(?:call|redispatch)")
# Operators of ATen that other operators make their results with.
_MAKERS = frozenset(
    (
        "empty_memory_format",
        "empty_strided",
        "empty_like",
        "empty_quantized",
        "new_empty",
        "new_empty_strided",
        "new_zeros",
        "resize_",
        "resize_as_",
        "zeros",
        "zeros_like",
    )
)
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/", re.DOTALL)
_ENGINE = "torch::autograd::Engine"
_NO_MODULE = "(no module)"  # as autofit's own snapshots say it


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """Frames that were read; the fields are those of `Event`."""

    where: str = ""
    stack: tuple[str, ...] = ()
    operator: str = ""
    module: str = ""
    is_backward: bool = False


NO_FRAMES = Frames()


def is_library(line: str) -> bool:
    """Whether a line `file:line:function` of a stack is in an installed package or the standard library."""
    return not line.startswith(("/", "./", "<"))


def read_frames(frames: Sequence[Any]) -> Frames:
    """Reads the frames of one allocation; what is no frame is left out.

    Args:
        frames: dicts with `filename`, `line` and `name`, innermost first.
    """
    lines: list[str] = []
    operator = module = ""
    is_backward = is_ours = False
    for number, frame in enumerate(frames[:MOST_FRAMES]):
        if not isinstance(frame, dict):
            continue
        file, name, line = (frame.get(key) for key in ("filename", "name", "line"))
        if not isinstance(file, str) or not isinstance(name, str) or type(line) is not int:
            continue
        file, name = file[:_MOST_CHARACTERS], name[:_MOST_CHARACTERS]
        if not number and not line and not file.startswith(("/", "?")) and not file.endswith(".so"):
            operator = "" if name.startswith("(") else name
            module, is_ours = "" if file == _NO_MODULE else file, True
        elif is_ours or file.endswith(".py") or file.startswith("<"):
            lines.append(f"{file if is_ours else _relative(file)}:{line}:{name}")
        else:
            is_backward = is_backward or _ENGINE in name
            operator = operator or _operator(name)
    stack = tuple(reversed(lines))
    where = next((line for line in lines if not is_library(line)), "")
    return Frames(where=where, stack=stack, operator=operator, module=module, is_backward=is_backward)


def of_line(where: str) -> str:
    """Line of the user's as a stack has it: with `./` before a path without a folder."""
    return where if where.startswith(("/", "./", "<")) else f"./{where}"


def short(where: str) -> str:
    """Line `file:line:function` without the file's folders."""
    file, colon, rest = where.partition(":")
    return f"{file.rsplit('/', 1)[-1]}{colon}{rest}"


def _relative(file: str) -> str:
    """File without the folder that libraries are installed in; the user's begin with `/`, `./` or `<`."""
    if file.startswith("<frozen "):
        return file.strip("<>")
    stripped = _LIBRARY.sub("", file)
    return stripped if stripped != file else of_line(file)


def _operator(name: str) -> str:
    found = _OPERATOR.search(name)
    return f"aten.{found[1]}" if found and found[1] not in _MAKERS else ""
