"""Makes a terminal of 80 columns the standard input of a script, on which nobody types."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager

_ROWS_AND_COLUMNS = (24, 80)
_ENDS_OF_INPUT = b"\x04" * 64  # each question gets an end of input


@contextmanager
def terminal_as_input() -> Iterator[None]:
    """Context manager that makes a terminal the standard input, because scripts ask `stty` for its width."""
    before = os.dup(0)
    ours, theirs = pty.openpty()
    try:
        size = struct.pack("HHHH", *_ROWS_AND_COLUMNS, 0, 0)  # of pixels nothing is said
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
        os.write(ours, _ENDS_OF_INPUT)
        os.dup2(theirs, 0)
        yield
    finally:
        os.dup2(before, 0)
        for each in (before, ours, theirs):
            os.close(each)
