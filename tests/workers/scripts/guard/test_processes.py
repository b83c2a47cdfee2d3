"""Processes that a script starts: those that only look at something, and no others."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autofit_workers.scripts.guard.processes import Processes
from autofit_workers.scripts.guard.queries import is_query


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set in this process stays in it."""
    for name in ("GIT_OPTIONAL_LOCKS", "JOBLIB_MULTIPROCESSING"):
        monkeypatch.setenv(name, "1")


@pytest.fixture
def guarded() -> Iterator[None]:
    processes = Processes(allowed=False, started=pytest.fail)
    processes.begin()
    try:
        yield
    finally:
        processes.end()


@pytest.mark.parametrize(
    "command",
    [
        "git rev-parse --short HEAD",
        "git -C /tmp status --porcelain",
        "git describe --tags --dirty",
        "git log -1 --oneline",
        "git diff --exit-code HEAD",
        "git branch --show-current",
        "git config --get user.name",
        "git config --global --get user.name",
        "nvidia-smi",
        "nvidia-smi -L",
        "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader",
        "nvidia-smi -i 0 -q -d MEMORY",
        "nvidia-smi topo -m",
        "uname -a",
        "hostname -I",
        "whoami",
        "/usr/bin/which gcc",
        "date +%F",
        "gcc --version",
        "python3 -c 'import sys, json; print(json.dumps(sys.path))'",
        "/sbin/ldconfig -p",
        "sysctl -n hw.memsize",
        "sh -c 'git rev-parse HEAD 2>/dev/null'",
        "sh -c 'nvidia-smi -L 2>&1 | wc -l'",
        "bash -c 'cd /tmp && git status; uname'",
        'sh -c "true  # it\'s fine"',
    ],
)
def test_a_command_that_only_looks_at_something_is_known(command: str):
    import shlex

    assert is_query(shlex.split(command))


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf x",
        "git",
        "git commit -am x",
        "git branch new",
        "git branch -D old",
        "git config user.name me",
        "git config --unset user.name",
        "git log --output=x",
        "git log --outp=x",
        "git diff --ext-diff",
        "git -c core.fsmonitor=x status",
        "nvidia-smi -pm 1",
        "nvidia-smi --gpu-reset -i 0",
        "nvidia-smi -f x",
        "hostname other",
        "hostname -F x",
        "date -s 2020-01-01",
        "date -us 2020-01-01",
        "date 01010000",
        "gcc x.c",
        "python3 -c 'import sys, json; print(json.dumps(sys.path)); import os; os.remove(1)'",
        "gcc --version x.c",
        "ldconfig",
        "sysctl -w a=1",
        "sysctl a=1",
        "python -c 'print()'",
        "PATH=. ls",
        "sh x",
        "sh -c 'ls > x'",
        "sh -c 'ls >> x'",
        "sh -c 'ls; rm x'",
        "sh -c 'ls & rm x'",
        "sh -c 'ls\nrm x'",
        "sh -c 'ls a#b; rm x'",
        "sh -c 'ls \"a # \"; rm x'",
        "sh -c 'ls $(rm x)'",
        "sh -c 'ls `rm x`'",
        "sh -c '(rm x)'",
        "sh -c 'cat <(rm x)'",
        "sh -c 'ls \"'",
        "sh -c ''",
    ],
)
def test_another_command_is_not_taken_for_one(command: str):
    import shlex

    assert not is_query(shlex.split(command))


STARTS: dict[str, Callable[[str], Any]] = {
    "run": lambda file: subprocess.run(["touch", file], check=True),
    "shell": lambda file: subprocess.run(f"touch {file}", shell=True, check=True),
    "of another program": lambda file: subprocess.check_call(["ls", file], executable=shutil.which("touch")),
    "system": lambda file: os.system(f"touch {file}"),
    "popen": lambda file: os.popen(f"touch {file}").close(),
    "posix_spawn": lambda file: os.posix_spawn(shutil.which("touch"), ["touch", file], os.environ),
    "spawn": lambda file: os.spawnlp(os.P_WAIT, "touch", "touch", file),
    "fork": lambda _file: os.fork() or os._exit(0),
    "exec": lambda file: os.execlp("ls", "ls", file),
    "pty": lambda file: __import__("pty").spawn(["touch", file]),
    "process": lambda file: multiprocessing.get_context("fork").Process(target=Path(file).touch).start(),
    "spawned process": lambda file: (
        multiprocessing.get_context("spawn").Process(target=Path(file).touch).start()
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_other_processes_are_refused_by_name(guarded: None, tmp_path: Path, name: str):
    file = tmp_path / "touched"
    with pytest.raises(PermissionError, match="--allow-subprocesses"):
        STARTS[name](str(file))
    assert not file.exists()


def test_queries_are_run(guarded: None):
    assert subprocess.run(["uname"], capture_output=True, check=True).stdout
    assert subprocess.check_output("uname 2>/dev/null", shell=True)
    assert os.system("true") == 0
    with os.popen("uname") as said:
        assert said.read()


def test_a_signal_reaches_no_other_process(guarded: None):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as own:
        own.kill()
    for send in (os.kill, os.killpg):
        with pytest.raises(PermissionError, match="which is none of its own"):
            send(os.getppid(), signal.SIGCONT)
    os.kill(os.getppid(), 0)


def _own_process(_number: int = 0) -> int:
    return os.getpid()


def test_pools_of_processes_are_threads(guarded: None):
    with multiprocessing.Pool(2, maxtasksperchild=1) as pool:
        assert set(pool.map(_own_process, range(4))) == {os.getpid()}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_own_process) == os.getpid()
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        assert set(executor.map(_own_process, range(4))) == {os.getpid()}
    with multiprocessing.Manager() as manager:
        queue, shared = manager.Queue(), manager.dict(a=1)
        queue.put(shared)
        assert queue.get()["a"] == 1
        with manager.Lock():
            assert manager.Value("i", 3).value == 3


def test_what_is_shared_between_processes_is_made_still(guarded: None):
    """Python starts a process of its own that cleans up behind them."""
    from multiprocessing import resource_tracker

    resource_tracker._resource_tracker._stop()  # of an earlier test
    resource_tracker.ensure_running()
    assert resource_tracker._resource_tracker._pid is not None


def test_processes_are_as_they_were_afterwards(tmp_path: Path):
    for allowed in (False, True):
        noted: list[None] = []
        processes = Processes(allowed=allowed, started=lambda noted=noted: noted.append(None))
        processes.begin()
        if allowed:
            STARTS["run"](str(tmp_path / "touched"))
        processes.end()
        assert bool(noted) is allowed
    assert (tmp_path / "touched").exists()
    with multiprocessing.Pool(1) as pool:
        assert pool.apply(_own_process) != os.getpid()
