"""Ends of what is predicted and of the command that predicts it, and what is left of them.

    child       a workload ends itself: by a signal, a crash, an exit, another program, or never
    warden      its process outside is sent a signal, or its whole group
    command     the process that waits for it is sent one

`python tests/faults/ends.py LINES` is such a command.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from autofit_workers.process.boundary.permissions import Permissions
from autofit_workers.process.child_process import ChildProcess

HERE = Path(__file__).parent
# So long one is waited for that does not end by itself.
_STUCK_SECONDS = 1.0
_READY_SECONDS = 60.0
_FOREVER = "import signal; [signal.pause() for _ in iter(int, 1)]"

# How a workload ends itself: lines of Python, which "; " parts.
_MOST_FORKS = "all(os.fork() for _ in range(500))"
LINES = {
    **{f"exit {code}": f"import os; os._exit({code})" for code in (0, 1, 3, 41, 255)},
    "returns": "pass",
    "raises": "raise ValueError('wrong')",
    "raises exit": "raise SystemExit(3)",
    "reads address zero": "import ctypes; ctypes.string_at(0)",
    "writes address zero": "import ctypes; ctypes.memset(0, 0, 1)",
    "aborts": "import os; os.abort()",
    "exits by C": "import ctypes; ctypes.CDLL(None)._exit(7)",
    "exits in a thread": (
        f"import os, threading; threading.Thread(target=os._exit, args=(5,)).start(); {_FOREVER}"
    ),
    "recurses without end": (
        "import sys; sys.setrecursionlimit(10**9); f = lambda n: [f(m) for m in (n, n)]; f(0)"
    ),
    "becomes true": "import os; os.execv('/bin/true', ['true'])",
    "becomes a shell that exits": "import os; os.execv('/bin/sh', ['sh', '-c', 'exit 9'])",
    "becomes a shell that stays": "import os; os.execv('/bin/sh', ['sh', '-c', 'sleep 1000 & sleep 1000'])",
    "becomes a shell in a session": "import os; os.execv('/bin/sh', ['sh', '-c', 'setsid sleep 1000'])",
    "becomes itself": "import os, sys; os.execv(sys.executable, [sys.executable, '-S', '-c', '1'])",
    "waits for ever": _FOREVER,
    "computes for ever": "for _ in iter(int, 1): pass",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "stops its group": "import os, signal; os.killpg(0, signal.SIGSTOP)",
    "kills its group": "import os, signal; os.killpg(0, signal.SIGKILL)",
    "ends its group": "import os, signal; os.killpg(0, signal.SIGTERM)",
    "kills all": "import os, signal; os.kill(-1, signal.SIGKILL); os._exit(6)",
    "kills the first": "import os, signal; os.kill(1, signal.SIGKILL); os._exit(6)",
    "closes all": "import os; os.closerange(0, 1000); os._exit(4)",
    "closes all and waits": f"import os; os.closerange(0, 1000); {_FOREVER}",
    "hands its pipes on": (
        "import os, subprocess; subprocess.Popen(['sleep', '1000'], pass_fds=[answers]); os._exit(4)"
    ),
    "forks 500": f"import os, signal; {_MOST_FORKS} or signal.pause(); os._exit(2)",
    "forks 500 and waits": f"import os, signal; {_MOST_FORKS} or signal.pause(); {_FOREVER}",
    "forks 500 sessions": f"import os, signal; {_MOST_FORKS} or os.setsid() or signal.pause(); os._exit(2)",
    "forks a chain of 500": (
        "import os, signal; n = sum(os.fork() == 0 for _ in range(9)); n and signal.pause(); os._exit(2)"
    ),
    "forks twice and leaves": (
        "import os, signal; os.fork() or os.setsid() and os.fork() or signal.pause(); os._exit(2)"
    ),
    "starts 100 threads": (
        "import os, threading; e = threading.Event(); "
        "[threading.Thread(target=e.wait, daemon=True).start() for _ in range(100)]; os._exit(2)"
    ),
    "fills the disk": (
        "import os, tempfile; n, _ = tempfile.mkstemp(); [os.write(n, bytes(2**24)) for _ in iter(int, 1)]"
    ),
    "has a limit of memory": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30)); held = bytes(2**31)"
    ),
    "has a limit of time": (
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1)); [0 for _ in iter(int, 1)]"
    ),
    "has no more descriptors": (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); open('/dev/null')"
    ),
    "writes nonsense": "import os; os.write(answers, b'nonsense' * 10000 + b'\\n'); os._exit(0)",
    "ignores signals": (
        "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 10, 12, 13, 14, 15)]; "
        f"{_FOREVER}"
    ),
    "is debugged": f"import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0); {_FOREVER}",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end.

    Attributes:
        lines: what the workload does once it is asked.
        target: `warden`, `group` or `command`, which is sent signals; empty where the workload ends itself.
        signals: which.
    """

    name: str
    lines: str = _FOREVER
    target: str = ""
    signals: tuple[int, ...] = ()


def ends() -> Iterator[End]:
    """All of them."""
    numbers = sorted(signal.valid_signals())
    for number in numbers:
        yield End(name=f"child {number}", lines=f"import os; os.kill(os.getpid(), {int(number)}); {_FOREVER}")
    for number in (n for n in numbers if n < 32 or n == max(numbers)):
        for target in ("warden", "group", "command"):
            # A command that is stopped goes on one day.
            signals = (number, signal.SIGCONT) if number == signal.SIGSTOP else (number,)
            yield End(name=f"{target} {number}", target=target, signals=signals)
    for target in ("warden", "group", "command"):
        yield End(name=f"{target} STOP KILL", target=target, signals=(signal.SIGSTOP, signal.SIGKILL))
        yield End(name=f"{target} STOP TERM CONT", target=target, signals=(19, 15, 18))
    for name, lines in LINES.items():
        yield End(name=name, lines=lines)


AFTERWARDS = End(name="afterwards", lines="import os; os._exit(0)", target="command")


def variables(name: str, key: int, folder: Path) -> dict[str, str]:
    """Those of one end's processes, by which they are found."""
    return {
        "ENDS_NAME": name,
        "ENDS_KEY": str(key),
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1] / "workers")]),
    }


def end(which: End, environment: Mapping[str, str]) -> str:
    """Has it happen and says how it went: `ready` where the workload had begun, then the death."""
    if which.target == "command":
        return _end_of_command(which, environment)
    send = None
    if which.target:
        kill = os.kill if which.target == "warden" else os.killpg
        send = lambda process: [kill(process.group, number) for number in which.signals]  # noqa: E731
    return watched(which.lines, environment, send)


def watched(
    lines: str, environment: Mapping[str, str], ready: Callable[[ChildProcess], object] | None = None
) -> str:
    """Waits for the end of a workload as a trial is waited for.

    Args:
        ready: is called once the workload has begun.
    """
    process = ChildProcess("ending_child", environment, permissions=Permissions())
    said = ""
    try:
        said = process.ask(lines, time.monotonic() + _READY_SECONDS)
        if ready is not None:
            with suppress(ProcessLookupError):
                ready(process)
        process.ask("", time.monotonic() + _STUCK_SECONDS)
        return f"{said}, answered, {process.kill()}"
    except (TimeoutError, EOFError) as error:
        return f"{said}, {type(error).__name__}, {process.kill()}"
    except BaseException:
        process.kill()
        raise
    finally:
        process.log.close()


def _end_of_command(which: End, environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-P", __file__, which.lines]
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        with suppress(ProcessLookupError):
            for number in which.signals:
                process.send_signal(number)
        try:
            return f"{said}, exit {process.wait(_READY_SECONDS)}"
        except subprocess.TimeoutExpired:
            process.kill()
            return f"{said}, never ended"


def main() -> int:
    sys.stdout.write(
        watched(sys.argv[1], {}, lambda _: sys.stdout.write("ready True\n") and sys.stdout.flush())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
