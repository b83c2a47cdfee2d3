"""Answers `nvidia-smi` for a script, on machines that have no such program, with the fake GPUs' properties.

Scripts print its output, or ask it for the names and memory of GPUs. What is not known in a prediction, such
as a temperature, is `[N/A]`, as the program itself says of what a GPU does not have.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import PurePath
from typing import Any

_PROGRAM = "nvidia-smi"
_MIB = 1024**2
_UNKNOWN = "[N/A]"
_QUERY = "--query-gpu"
_FORMAT = "--format"
_OF_SHELLS = frozenset("|&;<>$`()\n\\\"'")  # what a shell would not take as it is


def install(name: str, total_bytes: int, num_gpus: Callable[[], int]) -> None:
    """Replaces starts of a missing `nvidia-smi` in this process, for good.

    Args:
        name: name of the GPUs.
        total_bytes: memory of each of them.
        num_gpus: returns the number of GPUs that the machine seems to have.
    """
    if shutil.which(_PROGRAM) is not None:
        return
    popen: Any = subprocess.Popen
    start = popen.__init__

    def started(process: Any, args: Any, *rest: Any, **options: Any) -> None:
        words = _words(args)
        if words is not None:
            args, options["shell"] = ["echo", answer(words, name, total_bytes, num_gpus())], False
        start(process, args, *rest, **options)

    popen.__init__ = started


def answer(words: Sequence[str], name: str, total_bytes: int, num_gpus: int) -> str:
    """Output of `nvidia-smi` with these arguments, for GPUs that nothing uses."""
    options = _options(words)
    if _QUERY not in options:
        return "\n".join(f"GPU {index}: {name}" for index in range(num_gpus))
    columns = [column.strip() for column in options[_QUERY].split(",")]
    styles = options.get(_FORMAT, "").split(",")
    unit = "" if "nounits" in styles else " MiB"
    header = [] if "noheader" in styles else [", ".join(columns)]
    total = f"{total_bytes // _MIB}{unit}"
    known = {
        "name": name,
        "gpu_name": name,
        "count": str(num_gpus),
        "memory.total": total,
        "memory.free": total,
        "memory.used": f"0{unit}",
    }
    rows = [
        ", ".join({**known, "index": str(index)}.get(column, _UNKNOWN) for column in columns)
        for index in range(num_gpus)
    ]
    return "\n".join([*header, *rows])


def _words(args: Any) -> list[str] | None:
    """Arguments of a command that starts `nvidia-smi` and nothing else; None for other commands."""
    if isinstance(args, str):
        words = shlex.split(args) if args.startswith(_PROGRAM) and _OF_SHELLS.isdisjoint(args) else []
    else:
        words = [str(word) for word in args] if isinstance(args, list | tuple) else []
    return words[1:] if words and PurePath(words[0]).name == _PROGRAM else None


def _options(words: Sequence[str]) -> dict[str, str]:
    """Values of options, given as `--option=value` or in the next word."""
    options = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        option, is_joined, value = word.partition("=")
        options[option] = value if is_joined else following
    return options
