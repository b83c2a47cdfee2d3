"""Files with a setting a line: options of a command, overrides, and variables of an environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.written.told import REMOVED


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesFile:
    """Files with a setting a line, comments and blank lines between them.

    Attributes:
        form: pattern of a line, with the groups `before`, `key` and `value`; what matches none is refused.
        example: such a line, for messages.
        joint: text between a key and its value in a new line.
        before: text before the key in a new line.
        by_last_part: whether a dotted key stands for one that ends like it, as `data.batch_size` for
            `data.loader.batch_size`, if there is exactly one.
        last: pattern of lines that have to come after all others; None if the order is free.
    """

    form: re.Pattern[str]
    example: str
    joint: str = "="
    before: str = ""
    by_last_part: bool = False
    last: re.Pattern[str] | None = None

    def read(self, text: str) -> Mapping[str, Any]:
        found = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = self.form.fullmatch(line)
            if match is None:
                raise ValueError(f"has in line {number} no {self.example}")
            found[_key(match["key"])] = match["value"] or ""
        return found

    def merged(self, text: str | None, values: Mapping[str, Any]) -> str:
        if text is not None and self.by_last_part:
            values = self._as_found(text, values)
        left = {_key(key): (key, value) for key, value in values.items()}
        lines = []
        for line in (text or "").splitlines(keepends=True):
            match = None if line.lstrip().startswith("#") else self.form.fullmatch(line.rstrip("\r\n"))
            key = "" if match is None else _key(match["key"])
            if match is None or key not in left:
                lines.append(line if line.endswith("\n") else f"{line}\n")
                continue
            _, value = left.pop(key)
            if value is not REMOVED:
                lines.append(self._line(match["before"], match["key"], value))
        lines += (self._line(self.before, key, value) for key, value in left.values() if value is not REMOVED)
        if self.last is not None:
            last = self.last
            lines.sort(key=lambda line: last.fullmatch(line.rstrip()) is not None)  # stable
        return "".join(lines)

    def _line(self, before: str, key: str, value: object) -> str:
        return f"{before}{key}\n" if value is None else f"{before}{key}{self.joint}{value}\n"

    def _as_found(self, text: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by the keys that a file has for them: that key, or the only one with the same last part."""
        present = self.read(text)
        found = {}
        for key, value in values.items():
            alike = [each for each in present if _last(each) == _last(key)]
            found[key if key in present or len(alike) != 1 else alike[0]] = value
        return found


def _key(text: str) -> str:
    """Key by which lines are compared: `-` and `_` are one character to the tools that have both."""
    return text.replace("-", "_")


def _last(key: str) -> str:
    return key.rpartition(".")[2]
