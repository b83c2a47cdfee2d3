"""Runs a command of autofit in a process of its own, whose progress is told and which a cancellation ends.

server ── arguments, text on stdin ──▶ python -c … autofit.cli.called FD …
◀── a document on stdout, progress as lines on FD ──
── SIGTERM when the call is cancelled; SIGKILL to all that it started, some seconds later ──▶
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process

from autofit.errors import AutofitError, InternalError, UsageError

MOST_BYTES = 64 << 20  # of a document
_END_SECONDS = 12.0  # a command ends within nine seconds of a signal
# The first folder of the path is the current one, in which a file of a user's could have any module's name.
_BOOTSTRAP = "import sys; sys.path[:] = [p for p in sys.path if p]; from autofit.cli.called import run; run()"
_MOST_LINE = 1 << 16

Tell = Callable[[str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Called:
    """Outcome of a call: a document, and whether it is an error's."""

    document: dict[str, Any]
    is_error: bool


def refused(error: AutofitError) -> Called:
    """Outcome of a call that an error ended."""
    return Called(json.loads(error.to_json()), is_error=True)


async def call(words: Sequence[str], text: str, tell: Tell) -> Called:
    """Runs a command, and returns its document.

    Args:
        words: words of the command, without the program's name.
        text: its standard input.
        tell: called with each message of progress.
    """
    receiving, sending = os.pipe()
    process: Process | None = None
    try:
        process = await anyio.open_process(
            [sys.executable, "-c", _BOOTSTRAP, str(sending), *words],
            stderr=sys.stderr,
            pass_fds=(sending,),
            start_new_session=True,  # Ctrl-C at a terminal is for the server, which ends the call
        )
    except OSError as error:
        os.close(receiving)
        reason = error.strerror or error
        return refused(UsageError(f"the command cannot be started ({reason}): shorten its arguments"))
    finally:
        os.close(sending)
    try:
        return await _document(process, receiving, text, tell)
    finally:
        await _ended(process)


async def _document(process: Process, receiving: int, text: str, tell: Tell) -> Called:
    """Document that a command prints; meanwhile its progress is told."""
    assert process.stdin is not None
    assert process.stdout is not None
    found = bytearray()
    async with anyio.create_task_group() as group:
        group.start_soon(_tell_all, receiving, tell)
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.stdin.send(text.encode("utf-8", "replace"))
        await process.stdin.aclose()
        await _collect(process.stdout, found)
        await process.wait()
        group.cancel_scope.cancel()
    if len(found) > MOST_BYTES:
        return refused(UsageError("the answer is larger than 64 MiB: ask for less, as by `top`"))
    try:
        document = json.loads(found)
    except ValueError:
        return refused(InternalError(f"autofit ended with code {process.returncode} and printed no document"))
    return Called(document, is_error=document.get("schema") == "autofit.error/1")


async def _collect(stream: ByteReceiveStream, found: bytearray) -> None:
    with contextlib.suppress(anyio.EndOfStream):
        while len(found) <= MOST_BYTES:
            found += await stream.receive()


async def _tell_all(receiving: int, tell: Tell) -> None:
    """Tells each line that comes through a pipe, until its other end is closed."""
    rest = b""
    try:
        while True:
            await anyio.wait_readable(receiving)
            data = os.read(receiving, _MOST_LINE)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines[-1:]:  # those before are out of date already
                await tell(line.decode("utf-8", "replace"))
    finally:
        os.close(receiving)


async def _ended(process: Process) -> None:
    """Ends a command that still runs, and what it has started."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.terminate()
            with anyio.move_on_after(_END_SECONDS):
                await process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.aclose()
