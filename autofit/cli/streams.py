"""Guarded stdout and stderr of a command: redacts secrets, and ends the command if a write fails.

    click.echo, print, logging, Ray ──▶ sys.stdout ─┬─ redacted, controls escaped ─▶ the stream
    rich, whose texts are escaped already ──▶ .own ─┴─ redacted ───────────────────▶

- If the reader of stdout goes away, the command ends with exit code 141; if stdout fails otherwise, with 5.
- If stderr fails, later texts for it are dropped, so that a closed terminal never ends a search.
- Closed descriptors 0 to 2 are opened on the null device. Otherwise a database or socket could get such a
  number, and prints would be written into it.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from autofit.errors import AutofitError, OutputError, ReaderGoneError
from autofit_workers.spec.shown import redacted, shown


def open_missing() -> None:
    """Opens the null device in place of a closed stdin, stdout or stderr, so that no file gets its number.

    Writing to a closed stdout or stderr still fails.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = _Closed()


class _Closed(io.TextIOBase):
    def write(self, _text: str, /) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class _NotOurs(io.IOBase):
    def close(self) -> None:
        """Does nothing: the stream that is wrapped belongs to others, and stays open."""


class Guarded(_NotOurs, io.TextIOBase):
    """Text stream that writes to another one, with secrets redacted and control characters escaped.

    Args:
        stream: the stream that is written to.
        ends: whether a failed write raises an error that ends the command; else the text is dropped.

    Attributes:
        own: stream to the same place for rich, which redacts but does not escape.
        buffer: stream to the same place for bytes, which click uses if the encoding is ASCII.
    """

    def __init__(self, stream: TextIO, *, ends: bool) -> None:
        super().__init__()
        self._stream = stream
        self._ends = ends
        self._failure: AutofitError | None = None
        self.own = _Own(self)
        self.buffer = _Bytes(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding or "utf-8"

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self.put(shown(text))
        return len(text)

    def put(self, text: str) -> None:
        """Writes a text as it is; secrets must be redacted and control characters escaped already."""
        with self._failing():
            self._stream.write(text)

    def flush(self) -> None:
        with self._failing():
            self._stream.flush()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Context manager around a write that turns a failure into an error, if failures end the command.

        The error is raised again at every later write, as click may have swallowed it.
        """
        try:
            yield
        except OSError as error:
            _silence(self._stream)
            if not self._ends:
                return
            self._failure = ReaderGoneError() if error.errno == errno.EPIPE else _cannot_be_written(error)
        if self._failure is not None:
            raise self._failure


def _cannot_be_written(error: OSError) -> OutputError:
    return OutputError(
        f"stdout cannot be written ({error.strerror or error}): the answer is lost there; free space, or let "
        "stdout lead elsewhere, and run the same command again"
    )


class _Own(_NotOurs, io.TextIOBase):
    """Text stream for rich, which redacts secrets and leaves rich's control characters as they are."""

    def __init__(self, stream: Guarded) -> None:
        super().__init__()
        self._stream = stream
        self.isatty, self.fileno, self.flush = stream.isatty, stream.fileno, stream.flush  # type: ignore[method-assign]

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._stream.put(redacted(text))
        return len(text)


class _Bytes(_NotOurs, io.RawIOBase):
    """Byte stream to the same place as a guarded text stream, which redacts and escapes too."""

    def __init__(self, stream: Guarded) -> None:
        super().__init__()
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, content: Any, /) -> int:
        self._stream.write(bytes(content).decode(errors="replace"))
        return len(content)

    def flush(self) -> None:
        self._stream.flush()


def _silence(stream: TextIO) -> None:
    """Redirects a stream's descriptor to the null device, since Python flushes the stream again at exit."""
    with contextlib.suppress(OSError):  # a stream in memory has no descriptor
        descriptor = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)


def _whole(stream: TextIO) -> TextIO:
    """Line-buffered stream to write to in place of stdout, which a signal cannot cut in mid-line.

    `PYTHONUNBUFFERED` makes stdout unbuffered, and a signal would then cut a write short; in this case a new
    stream on the same descriptor is returned, else `stream` itself.
    """
    if not isinstance(getattr(stream, "buffer", None), io.RawIOBase):
        return stream
    return open(
        stream.fileno(), "w", encoding=stream.encoding, errors=stream.errors, buffering=1, closefd=False
    )


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Context manager that replaces `sys.stdout` and `sys.stderr` by streams that redact and escape."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):  # a character outside its encoding must not raise an error
            stream.reconfigure(errors="replace")
    sys.stdout = Guarded(_whole(before[0]), ends=True)
    sys.stderr = Guarded(before[1], ends=False)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
