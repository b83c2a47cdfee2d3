"""Remembers the last text that a script printed through Python, since its process cannot read its log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_LAST_CHARACTERS = 2048


class Printed:
    """Remembers the last characters written to standard output and standard error."""

    def __init__(self) -> None:
        self._end = ""

    @contextmanager
    def remembered(self) -> Iterator[None]:
        """Context manager that remembers printed text, while the streams still write it."""
        streams = (sys.stdout, sys.stderr)
        for stream in streams:
            self._listen_to(stream)
        try:
            yield
        finally:
            for stream in streams:
                vars(stream).pop("write", None)  # unless the script has deleted it

    def last_line(self) -> str:
        """Last non-empty line that was printed; an empty string if there is none."""
        lines = self._end.strip().splitlines()
        return lines[-1].strip() if lines else ""

    def _listen_to(self, stream: TextIO) -> None:
        write = stream.write

        def heard(text: str) -> int:
            self._end = (self._end + text)[-_LAST_CHARACTERS:]
            return write(text)

        stream.write = heard  # type: ignore[method-assign]
