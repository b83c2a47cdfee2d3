"""Handles Ctrl-C and SIGTERM: ends a command in an orderly way, with exit code 130.

    first signal ─▶ KeyboardInterrupt ─▶ trials end, then Ray ─▶ one document, exit 130
          └──────▶ a thread, nine seconds later: the document if none was printed, exit 130

Signals may come at any moment; further ones change nothing, so that a second Ctrl-C leaves no processes
behind. The thread ends the process if the exception does not in time: a library may swallow a
`KeyboardInterrupt`, or compute for longer. The processes of trials and of Ray end once this process is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from autofit.errors import AutofitError, ExitCode

_LONGEST_SECONDS = 9.0


class SearchInterruptedError(AutofitError):
    """Error of a command that Ctrl-C or SIGTERM ended; finished trials of a search stay stored."""

    kind = "interrupted"
    exit_code = ExitCode.INTERRUPTED


class Interruption:
    """Interruption of one command by SIGINT or SIGTERM: whether a signal came, and how the command ends.

    Attributes:
        is_wanted: whether a signal came.
        is_answered: whether the command's JSON document was printed.
        describe: function that returns the error's message; a command that stores something sets it, to name
            what was stored.
    """

    def __init__(self) -> None:
        self.is_wanted = self.is_answered = False
        self.describe: Callable[[], str] = lambda: "interrupted"
        self._is_printing = self._is_over = False
        # Locks instead of events, as a signal handler may release one at any point of its thread.
        self._comes, self._goes = threading.Lock(), threading.Lock()

    def error(self) -> SearchInterruptedError:
        """Error with which the command ends after a signal; its message says what was stored."""
        return SearchInterruptedError(self.describe())

    def end(self, *, as_json: bool) -> int:
        """Prints the error of the interrupted command, and returns the exit code 130.

        Args:
            as_json: whether to print the error as JSON on stdout; omitted if the command printed its document
                already.
        """
        if not as_json:
            print(f"error: {self.error().message}", file=sys.stderr)  # noqa: T201 - click may not be imported yet
        elif not self.is_answered:
            print(self.error().to_json(), flush=True)  # noqa: T201
            self.is_answered = True
        return ExitCode.INTERRUPTED

    @contextlib.contextmanager
    def heeded(self, *, as_json: bool, to_the_end: bool) -> Iterator[None]:
        """Context manager in which SIGINT and SIGTERM raise `KeyboardInterrupt`, once.

        If the block has not ended 9 s after the signal, the process is ended. Outside the main thread, the
        context manager does nothing.

        Args:
            as_json: whether an interruption is reported as a JSON document.
            to_the_end: whether this process ends after the block. Then the limit of 9 s also holds for the
                process's end, which may hang, and the former signal handlers are not restored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        taken = [signal.SIGTERM]
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # shells ignore it for background commands
            taken.append(signal.SIGINT)
        self._comes.acquire()
        self._goes.acquire()
        before = {number: signal.signal(number, self._come) for number in taken}
        threading.Thread(target=self._end_in_time, args=(as_json,), daemon=True).start()
        try:
            yield
        finally:
            self._is_over = True
            if not (self.is_wanted and to_the_end):
                self._goes.release()
                with contextlib.suppress(RuntimeError):  # a signal has released it already
                    self._comes.release()
            if not to_the_end:
                for number, handler in before.items():
                    signal.signal(number, handler)

    @contextlib.contextmanager
    def printing(self) -> Iterator[None]:
        """Context manager in which a document is printed; a signal takes effect only at its end."""
        self._is_printing = True
        try:
            yield
            self.is_answered = True
        finally:
            self._is_printing = False
        if self.is_wanted and not self._is_over:
            raise KeyboardInterrupt

    def _come(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_wanted:
            return
        if self._is_over:  # the command has ended, and its output is complete
            os._exit(ExitCode.INTERRUPTED)
        self.is_wanted = True
        self._comes.release()
        if not self._is_printing:
            raise KeyboardInterrupt

    def _end_in_time(self, as_json: bool) -> None:
        """Ends the process if the command has not ended some seconds after a signal; runs in a thread."""
        self._comes.acquire()
        if self._goes.acquire(timeout=_LONGEST_SECONDS if self.is_wanted else 0):
            return
        if not self.is_wanted:
            return
        try:
            if not as_json:
                _write_at_once(2, f"error: {self.error().message}\n")
            elif not (self.is_answered or self._is_printing):
                _write_at_once(1, f"{self.error().to_json()}\n")
        finally:
            os._exit(ExitCode.INTERRUPTED)


def _write_at_once(descriptor: int, text: str) -> None:
    """Writes a text to a file descriptor, or nothing if that would block; no locks of Python are taken."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if poll.poll(0):
        os.write(descriptor, text.encode())


_current = Interruption()


def current() -> Interruption:
    """Interruption state of the command that this process runs now."""
    return _current


@contextlib.contextmanager
def interruptible(*, as_json: bool, to_the_end: bool) -> Iterator[Interruption]:
    """Context manager in which SIGINT and SIGTERM raise `KeyboardInterrupt`, and the process ends in time.

    Args:
        as_json: whether the command prints a JSON document; an interruption is then reported as one.
        to_the_end: whether this process ends after the block; see `Interruption.heeded`.
    """
    global _current  # noqa: PLW0603 - signals are the process's
    outer, _current = _current, Interruption()
    try:
        with _current.heeded(as_json=as_json, to_the_end=to_the_end):
            yield _current
    finally:
        _current = outer


def print_document(text: str) -> None:
    """Prints a JSON document completely; a signal takes effect after its end."""
    import click

    with _current.printing():
        click.echo(text)
