"""The command line: parses arguments, calls the API and renders the answers.

arguments ─ click ─▶ resolve_settings ─▶ session.run ─ events ─▶ progress on stderr
                                            └──── result ─▶ text or one JSON document on stdout
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from autofit.cli.interruption import interruptible
from autofit.cli.streams import open_missing
from autofit.jobs.signing import key_out_of_environment

if TYPE_CHECKING:
    from autofit.cli.backend import Backend

__all__ = ["main"]

_PREDICTING = ("tune", "estimate", "profile", "check", "cards", "compare")
# Options with which a command predicts nothing, or predicts in another process.
_NOT_WITH = frozenset(
    {
        "-h",
        "--help",
        "--help-all",
        "--script",
        "--device",
        "--trace",
        "--allow-network",
        "--allow-subprocesses",
        "--keep-env",
    }
)
# Thresholds of the garbage collector. A search makes hardly any reference cycles; looking for them as often
# as Python does by default would take a tenth of the time.
_COLLECTIONS = (50_000, 20, 100)


def main(arguments: Sequence[str] | None = None, *, backend: Backend | None = None) -> int:
    """Runs an autofit command line; also handles Ctrl-C and SIGTERM, from before slow imports on.

    Args:
        arguments: arguments without the program's name; those of the process if None.
        backend: functions that the commands call; the real ones if None.

    Returns:
        The exit code.
    """
    as_json = "--json" in (sys.argv if arguments is None else arguments)
    with interruptible(as_json=as_json, to_the_end=arguments is None) as interruption:
        try:
            # The key is out before a process is started that runs users' code.
            with key_out_of_environment(), ExitStack() as around:
                if arguments is None:
                    open_missing()
                    if sys.argv[1:2] and sys.argv[1] in _PREDICTING:
                        around.enter_context(_predicting(sys.argv[1], sys.argv[2:]))
                from autofit.cli.app import main as run

                return run(arguments, backend=backend)
        except BaseException:  # libraries may turn a KeyboardInterrupt into another exception
            if not interruption.is_wanted:
                raise
            return interruption.end(as_json=as_json)


@contextmanager
def _predicting(command: str, options: Sequence[str]) -> Iterator[None]:
    """Context manager for a command that predicts: starts what it needs, and may leave a warm tracer behind.

    Args:
        command: the command, such as `tune`.
        options: arguments of the command, as typed.
    """
    gc.set_threshold(*_COLLECTIONS)
    # Scripts and other programs that run autofit expect that nothing stays running.
    is_warm = "--no-warm" not in options and ("--warm" in options or sys.stderr.isatty())
    if is_warm:
        from autofit.predict.tracing import warm

        warm.use(options)
    _start_to_predict(command, options)
    yield
    if is_warm:
        warm.leave()


def _start_to_predict(command: str, options: Sequence[str]) -> None:
    """Starts the predicting process early, so that it imports torch while this process goes on.

    Does nothing if an option means that nothing is predicted, or that it is done in another process; or if
    traces of the model are kept, so that none is likely to be made.

    Args:
        command: the command, such as `tune`.
        options: arguments of the command, as typed.
    """
    if not _NOT_WITH.isdisjoint(option.partition("=")[0] for option in options):
        return
    from autofit.predict.tracing.known_models import is_any_known

    if "--fresh" in options or not is_any_known(options, with_calls=command == "profile"):
        from autofit_workers.trials.run import start_predictor  # the door imports more than a start needs

        with suppress(OSError):  # the first prediction reports the error
            start_predictor()
