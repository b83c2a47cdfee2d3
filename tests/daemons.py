"""Programs that run beside a test: started, awaited until their log says ready, and ended."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from autofit_workers.spec.pythons import Self

_READY_SECONDS = 120.0
_END_SECONDS = 30.0
_LOOK_SECONDS = 0.05
_FIRST_PORT, _NUM_PORTS = 20_000, 12_000


class Daemon:
    """A process with its output in a file; use it in a `with` statement, or stop it.

    Args:
        command: program and arguments.
        log: the file for both outputs.
        environment: variables that are added to this process's.
    """

    def __init__(
        self, command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        self._name = Path(command[0]).name
        with log.open("w") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """Output of the process so far."""
        return self._log.read_text(errors="replace")

    def await_log(self, text: str) -> str:
        """Waits for `text` in the output; returns its line. A process that ends before fails the test."""
        give_up = time.monotonic() + _READY_SECONDS
        while True:
            has_ended = self.process.poll() is not None  # asked first: its last words count
            line = next((line for line in self.log.splitlines() if text in line), None)
            if line is not None:
                return line
            state = f"ended with {self.process.returncode}" if has_ended else "was not ready in time"
            assert not has_ended and time.monotonic() < give_up, f"{self._name} {state}: {self.log}"
            time.sleep(_LOOK_SECONDS)

    def kill(self) -> None:
        """Kills the process with SIGKILL, and waits for its end."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends the process with SIGTERM, or SIGKILL after 30 seconds; may be called again."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_ports(num_ports: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on, all different.

    They lie below those that the kernel hands out, so that a server started again finds its own free.
    """
    with ExitStack() as stack:
        found: list[int] = []
        while len(found) < num_ports:
            port = _FIRST_PORT + secrets.randbelow(_NUM_PORTS)
            each = stack.enter_context(socket.socket())
            with suppress(OSError):  # taken
                each.bind(("127.0.0.1", port))
                found.append(port)
        return found
