"""Python files with one call whose keyword arguments are changed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.written.told import REMOVED


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCall:
    """Python files that call something once; keyword arguments are changed and added there.

    Attributes:
        name: end of the name that is called, such as `TrainingArguments`.
        new: text of a new file, with `{arguments}` for the lines of the arguments.
    """

    name: str
    new: str

    def read(self, text: str) -> Mapping[str, Any]:
        if not text.strip():
            return {}
        call = self._call(text)
        return {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg is not None}

    def merged(self, text: str | None, values: Mapping[str, Any]) -> str:
        kept = {key: repr(value) for key, value in values.items() if value is not REMOVED}
        if text is None or not text.strip():
            lines = "".join(f"    {key}={value},\n" for key, value in kept.items())
            return self.new.replace("{arguments}", lines)
        call = self._call(text)
        data = text.encode()
        places = _Places(text)
        changes = []
        for each in call.keywords:
            if each.arg in kept:
                start, end = places.of(each.value)
                changes.append((start, end, kept.pop(each.arg)))
        if kept:
            changes.append(_added(call, data, places, kept))
        for start, end, new in sorted(changes, reverse=True):
            data = data[:start] + new.encode() + data[end:]
        return data.decode()

    def _call(self, text: str) -> ast.Call:
        """The call in a file.

        Raises:
            ValueError: the text is no Python, or does not call it exactly once.
        """
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            where = f" in line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise ValueError(f"is no Python{where}") from error
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and _called(node).endswith(self.name)
        ]
        if len(calls) != 1:
            how = "does not call" if not calls else f"calls {len(calls)} times"
            raise ValueError(f"{how} {self.name}: it should once")
        return calls[0]


def _called(call: ast.Call) -> str:
    """Last part of the name that is called; empty if it has none."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


class _Places:
    """Byte offsets of the nodes of a text's syntax tree."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        for line in text.encode().split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def of(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column


def _added(call: ast.Call, data: bytes, places: _Places, kept: Mapping[str, str]) -> tuple[int, int, str]:
    """Place and text of arguments that are added to a call, after its last one.

    Each has a line of its own if the last argument has one.
    """
    arguments = [*call.args, *(each.value for each in call.keywords)]
    texts = [f"{key}={value}" for key, value in kept.items()]
    if not arguments:
        end = places.of(call)[1] - 1
        return end, end, ", ".join(texts)
    last = max(arguments, key=lambda each: places.of(each)[1])
    end = places.of(last)[1]
    line_start = data.rfind(b"\n", 0, places.of(last)[0]) + 1
    line = data[line_start:end].decode()
    indent = line[: len(line) - len(line.lstrip())]
    is_alone = places.of(call.func)[1] < line_start
    joint = f",\n{indent}" if is_alone else ", "
    return end, end, joint + joint.join(texts)
