"""Command line as another program calls it: progress goes through a pipe, a line for each message."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from autofit.cli import main
from autofit.cli.backend import Backend
from autofit.events import Event, Noted, Progress, TrialStarted, fan_out

_LEAST_SECONDS = 0.1  # between two messages of one stage
_WITHOUT_EVENTS = ("local_gpus", "examine")


def run() -> None:
    """Runs the command line in `sys.argv`, behind the number of the pipe for its progress; never returns."""
    pipe = int(sys.argv.pop(1))
    sys.argv[0] = "autofit"
    os.set_inheritable(pipe, False)
    sys.exit(main(backend=_telling(_Teller(pipe))))


class _Teller:
    """Event sink that writes what happens to a pipe, and ends the command once nobody reads there."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._stage, self._told_at = "", 0.0

    def __call__(self, event: Event) -> None:
        match event:
            case Progress(stage=stage):
                message = event.in_words
            case Noted(text=stage):
                message = stage
            case TrialStarted(trial=trial, spec=spec):
                stage, message = "trials", f"trial {trial}: batch {spec.batch_size}"
            case _:
                return
        now = time.monotonic()
        if stage == self._stage and now - self._told_at < _LEAST_SECONDS:
            return
        self._stage, self._told_at = stage, now
        try:
            os.write(self._pipe, f"{' '.join(message.split())[:1000]}\n".encode())
        except OSError:  # the caller is gone
            os.kill(os.getpid(), signal.SIGTERM)


def _telling(tell: _Teller) -> Backend:
    """Functions that the commands call, which report their events to `tell` too."""
    backend = Backend()
    names = [each.name for each in dataclasses.fields(Backend) if each.name not in _WITHOUT_EVENTS]
    return dataclasses.replace(backend, **{name: _also(getattr(backend, name), tell) for name in names})


def _also(ask: Callable[..., Any], tell: _Teller) -> Callable[..., Any]:
    """Function whose last argument, an event sink, shares its events with another."""

    def asked(*arguments: Any) -> Any:
        return ask(*arguments[:-1], fan_out(arguments[-1], tell))

    return asked
