"""Shell scripts with one command of a launcher, whose options are changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPTIONS, ARGUMENTS, REST = "options", "arguments", "rest"
# Words of an option's value: quoted, or up to a blank.
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s"'\\]+)+"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFile:
    """Shell scripts that call a command once; the values of its options are changed there.

    Values have the key `OPTIONS`, a mapping of the command's options; `ARGUMENTS`, a mapping of arguments for
    the script that it starts; and `REST`, what a new command has after its options. What else is in a command
    that is there is kept.

    Attributes:
        command: pattern of the words that call it.
        name: the words of a new command.
    """

    command: re.Pattern[str]
    name: str

    def read(self, text: str) -> Mapping[str, Any]:
        if not text.strip():
            return {}
        self._place(text)
        return {}

    def merged(self, text: str | None, values: Mapping[str, Any]) -> str:
        if text is None or not text.strip():
            options = " ".join(f"{key}={value}" for key, value in values[OPTIONS].items())
            return f"{text or ''}{self.name} {options} {values[REST]}\n"
        start, end = self._place(text)
        called, rest = text[:start], text[start:end]
        for key, value in values[OPTIONS].items():
            changed = _with_option(rest, key, value)
            rest = f" {key}={value}{rest}" if changed is None else changed
        for key, value in values.get(ARGUMENTS, {}).items():
            changed = _with_option(rest, key, value)
            rest = f"{rest.rstrip()} {key}={value}" if changed is None else changed
        return called + rest + text[end:]

    def _place(self, text: str) -> tuple[int, int]:
        """Place of what follows the command's name, up to the end of its last line.

        Raises:
            ValueError: the command is not called, or more than once.
        """
        found = [
            match
            for match in self.command.finditer(text)
            if not text[text.rfind("\n", 0, match.start()) + 1 :].lstrip().startswith("#")
        ]
        if len(found) != 1:
            how = "does not call" if not found else f"calls {len(found)} times"
            raise ValueError(f"{how} {self.name}: it should once")
        ended = re.compile(r"(?<!\\)(?:\n|\Z)").search(text, found[0].end())
        assert ended is not None
        return found[0].end(), ended.start()


def _with_option(rest: str, key: str, value: object) -> str | None:
    """Text of a command after its name, with the value of an option changed; None if it has no such option.

    Args:
        key: option with the dashes before it; `-` and `_` within are alike.
    """
    dashes, name = key[: len(key) - len(key.lstrip("-"))], key.lstrip("-")
    either = "[-_]".join(map(re.escape, re.split("[-_]", name)))
    found = re.search(rf"(?<!\S)({dashes}{either})([ =])\s*{_VALUE}", rest)
    if found is None:
        return None
    return f"{rest[: found.start()]}{found[1]}{found[2]}{value}{rest[found.end() :]}"
