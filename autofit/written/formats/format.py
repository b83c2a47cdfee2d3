"""Format of `--write`: a tool's file, and how a setting is told to the tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autofit.written.files.kind import FileKind
from autofit.written.setting import Setting
from autofit.written.told import Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Format of `--write FORMAT=FILE`.

    Attributes:
        name: name as it is typed.
        tool: what the file holds, for sentences: `Accelerate's configuration`.
        use: how the tool is given the file.
        file: kind of the file.
        tell: collects what the file is told of a setting, given the values of the file that exists.
        of_training: whether the file has a meaning for training alone.
    """

    name: str
    tool: str
    use: str
    file: FileKind
    tell: Callable[[Setting, Mapping[str, Any]], Told]
    of_training: bool = True
