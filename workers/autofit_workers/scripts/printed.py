"""Remembers what a script printed last by way of Python: the log is a pipe and cannot be read back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_LAST_CHARACTERS = 2048


class Printed:
    """Remembers the end of what is written to standard output and standard error."""

    def __init__(self) -> None:
        self._end = ""

    @contextmanager
    def remembered(self) -> Iterator[None]:
        """Remembers what is printed in the block; what the streams do stays as it is."""
        streams = (sys.stdout, sys.stderr)
        for stream in streams:
            self._listen_to(stream)
        try:
            yield
        finally:
            for stream in streams:
                vars(stream).pop("write", None)  # the instance's own, which the script may have deleted

    def last_line(self) -> str:
        """Last line that is not empty; an empty string where there is none."""
        lines = self._end.strip().splitlines()
        return lines[-1].strip() if lines else ""

    def _listen_to(self, stream: TextIO) -> None:
        write = stream.write

        def heard(text: str) -> int:
            self._end = (self._end + text)[-_LAST_CHARACTERS:]
            return write(text)

        stream.write = heard  # type: ignore[method-assign]
