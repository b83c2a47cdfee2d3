"""Log of a process's output: its first and last bytes, however much it prints."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

END_BYTES = 4096  # of the beginning, and as many of the end
_CHUNK_BYTES = 1 << 16
# Bytes that a process can print before anybody reads them; then it waits.
_PIPE_BYTES = 1 << 20
_MOST_CHUNKS = 256  # at once, as a process may print faster than this one reads


class Log:
    """Log that keeps the first and the last bytes read from a pipe, and counts all bytes.

    Attributes:
        writer: writing end of the pipe, for the process; the caller closes it.
    """

    def __init__(self) -> None:
        self._pipe, self.writer = os.pipe()
        os.set_blocking(self._pipe, False)
        with suppress(AttributeError, OSError):  # Linux only, up to a limit
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.forget()

    def fileno(self) -> int:
        """File descriptor of the pipe's reading end, for a selector."""
        return self._pipe

    def listen(self) -> bool:
        """Reads available output without waiting; returns False once the pipe is closed."""
        for _ in range(_MOST_CHUNKS):
            try:
                chunk = os.read(self._pipe, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._add(chunk)
        return True

    def forget(self) -> None:
        """Discards all output that was read so far."""
        self._begin = self._end = b""
        self._num_bytes = 0
        self.listen()
        self._begin = self._end = b""
        self._num_bytes = 0

    def text(self) -> str:
        """Output as text: its first and last bytes, with a line between that counts the bytes left out."""
        self.listen()
        left_out = self._num_bytes - len(self._begin) - len(self._end)
        between = f"\n[{left_out:,} bytes left out]\n" if left_out else ""
        parts = (self._begin, between.encode(), self._end)
        return b"".join(parts).decode(errors="replace")

    def close(self) -> None:
        """Closes the log's reading end of the pipe."""
        os.close(self._pipe)

    def _add(self, chunk: bytes) -> None:
        self._num_bytes += len(chunk)
        room = END_BYTES - len(self._begin)
        self._begin += chunk[:room]
        self._end = (self._end + chunk[room:])[-END_BYTES:]
