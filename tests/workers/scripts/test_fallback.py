"""Scripts where there are no namespaces: what Python tells of them is all that keeps them from anything."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import multiprocessing
import os
import readline
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import torch

from autofit_workers.process.scratch import Scratch, _sweep
from autofit_workers.scripts.files import KeptFiles
from autofit_workers.scripts.guard.network import Network
from autofit_workers.scripts.guard.processes import Processes
from autofit_workers.scripts.guard.queries import is_query
from autofit_workers.trace import UNPROTECTED

ROOT = Path(__file__).parents[3]

# ── files ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, beside one that is temporary."""
    users = tmp_path / "users"
    users.mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(users)
    for name in ("kept.txt", "empty", "../temporary/old"):
        (users / name).write_text("" if name == "empty" else "old")
    (users / "kept").mkdir()
    (users / "other.db").touch()
    with sqlite3.connect(users / "kept.db") as database:
        database.execute("create table kept (number)")
    database.close()
    return users


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a folder, with its rights."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


@contextmanager
def at(folder: str) -> Iterator[int]:
    number = os.open(folder, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


def beside(act: Callable[[int], Any]) -> None:
    """Does something by paths that are relative to an open folder."""
    with at(".") as number:
        act(number)


REFUSED: dict[str, Callable[[], Any]] = {
    "remove": lambda: os.remove("kept.txt"),
    "unlink at": lambda: beside(lambda number: os.unlink("kept.txt", dir_fd=number)),
    "rmdir": lambda: os.rmdir("kept"),
    "rename": lambda: os.rename("kept.txt", "other"),
    "rename at": lambda: beside(lambda number: os.rename("kept.txt", "other", src_dir_fd=number)),
    "rename a folder": lambda: os.rename("kept", "other"),
    "rmtree": lambda: shutil.rmtree("kept"),
    "chmod": lambda: os.chmod("kept.txt", 0o777),
    "chmod of a folder": lambda: os.chmod("kept", 0o777),
    "fchmod": lambda: beside(lambda number: os.fchmod(number, 0o777)),
    "chown": lambda: os.chown("kept.txt", os.getuid(), os.getgid()),
    "lchown": lambda: os.lchown("kept.txt", os.getuid(), os.getgid()),
    "utime": lambda: os.utime("kept.txt"),
    "setxattr": lambda: os.setxattr("kept.txt", "user.mark", b"1"),
    "removexattr": lambda: os.removexattr("kept.txt", "user.mark"),
    "link": lambda: os.link("kept.txt", "other"),
    "in a temporary folder": lambda: os.remove("../temporary/old"),
    "chmod in a temporary folder": lambda: os.chmod("../temporary/old", 0o777),
    "database": lambda: sqlite3.Connection("kept.db"),
    "database by a URI": lambda: sqlite3.connect("file:kept.db", uri=True),
    "by another name": lambda: __import__("posix").open("empty", os.O_WRONLY),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_a_file_of_the_user_is_refused(folder: Path, name: str):
    before = contents(folder.parent)
    with KeptFiles(str(folder), saves=False), pytest.raises(PermissionError, match="does not let the script"):
        REFUSED[name]()
    assert contents(folder.parent) == before


def saved_by_torch(path: str) -> None:
    writer = torch._C.PyTorchFileWriter(path)
    writer.write_record("data", b"new", 3)
    writer.write_end_of_file()
    assert torch._C.PyTorchFileReader(path).has_record("data")


def saved_by_jit(path: str) -> None:
    module = torch.jit.script(torch.nn.Linear(1, 1))
    module.save(path)
    torch.jit.save(module, path)
    assert torch.jit.load(path).weight.shape == (1, 1)


def saved_by_profiler(path: str) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(1)
    profile.export_chrome_trace(path)
    assert "traceEvents" in json.loads(Path(path).read_text())


def saved_by_tokenizers(path: str) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.save(path)
    assert tokenizers.Tokenizer.from_file(path).get_vocab() == {"a": 0}
    assert tokenizer.model.save(".", "words") == ["./words-vocab.json"] or tokenizer.model.save(".")


def saved_by_safetensors(path: str) -> None:
    safetensors.numpy.save_file({"a": np.ones(1)}, path)
    assert safetensors.numpy.load(Path(path).read_bytes())["a"] == [1]


def mapped(path: str) -> None:
    torch.from_file(path, shared=True, size=3, dtype=torch.uint8).fill_(0)
    torch.UntypedStorage.from_file(path, True, 3).fill_(0)


def kept_in_database(path: str) -> None:
    if Path(path).exists() and not path.endswith(".db"):
        return
    for _ in range(2):
        with sqlite3.connect(path) as database:
            database.execute("create table if not exists written (number)")
            database.execute("insert into written values (1)")
        database.close()
    with sqlite3.connect(path) as database:
        assert database.execute("select count(*) from written").fetchone() == (2,)
    database.close()


def written_at(path: str) -> None:
    with at(".") as number:
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, dir_fd=number)
        os.write(file, b"new")
        os.close(file)


WRITTEN: dict[str, Callable[[str], Any]] = {
    "text": lambda path: Path(path).write_text("new"),
    "bytes of a name": lambda path: open(os.fsencode(path), "w").close(),
    "descriptor": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)),
    "descriptor at": written_at,
    "truncate": lambda path: Path(path).touch() or os.truncate(path, 0),
    "touch": lambda path: Path(path).touch(),
    "replace": lambda path: (Path("part").write_text("new"), os.replace("part", path)),
    "replace from a temporary folder": lambda path: (
        Path("../temporary/part").write_text("new"),
        os.replace("../temporary/part", path),
    ),
    "copy": lambda path: shutil.copy2("other.db", path),
    "history": lambda path: readline.write_history_file(Path(path)),
    "archive": saved_by_torch,
    "script": saved_by_jit,
    "profile": saved_by_profiler,
    "tokenizer": saved_by_tokenizers,
    "safetensors": saved_by_safetensors,
    "mapped": mapped,
    "database": kept_in_database,
    "symlink": lambda path: (os.symlink(path, "link"), Path("link").write_text("new")),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("path", ["kept.txt", "empty", "new", "kept.db", "../temporary/old"])
def test_what_is_written_leaves_the_users_files_as_they_were(folder: Path, name: str, path: str):
    if name == "mapped" and path == "new":
        path = "kept.txt"  # there has to be one
    before = contents(folder.parent)
    with KeptFiles(str(folder), saves=False):
        WRITTEN[name](path)
    after = contents(folder.parent)
    assert {each: after.get(each) for each in before} == before
    assert not [each for each in after if each.startswith("users") and each not in before]


def test_what_a_script_makes_in_a_temporary_folder_it_may_change(folder: Path):
    temporary = folder.parent / "temporary"
    with KeptFiles(str(folder), saves=False):
        made = temporary / "made"
        (made / "deep").mkdir(parents=True)
        (made / "file").write_text("one")
        (made / "file").chmod(0o600)
        with (made / "file").open("a") as file:
            file.write(" two")
        (made / "file").rename(temporary / "moved")
        shutil.rmtree(made)
    assert (temporary / "moved").read_text() == "one two"
    assert not made.exists()


def test_pipes_and_folders_that_a_script_makes_are_gone_at_the_end(folder: Path):
    before = contents(folder)
    with KeptFiles(str(folder), saves=False):
        os.mkfifo("pipe")
        beside(lambda number: os.mkdir("made", dir_fd=number))
        assert Path("made").is_dir() and Path("pipe").exists()
    assert contents(folder) == before


def test_devices_and_terminals_are_written_to(folder: Path):
    with KeptFiles(str(folder), saves=False), open("/dev/null", "w") as null:
        assert os.path.samestat(os.fstat(null.fileno()), os.stat("/dev/null"))


# ── processes ───────────────────────────────────────────────────────────────────────────────────


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


# ── network ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def offline() -> Iterator[None]:
    network = Network()
    network.begin()
    yield
    network.end()


def test_another_process_of_the_machine_is_not_reached():
    with socket.create_server(("127.0.0.1", 0)) as server:
        network = Network()
        network.begin()
        try:
            with pytest.raises(PermissionError, match=r"connect to 127\.0\.0\.1:.*--allow-network"):
                socket.create_connection(server.getsockname())
        finally:
            network.end()
        socket.create_connection(server.getsockname()).close()


def test_a_socket_of_its_own_is_reached(offline: None, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "socket"))
        server.listen()
        client.connect(str(tmp_path / "socket"))


@pytest.mark.parametrize(
    "reach",
    [
        lambda: socket.getaddrinfo("example.com", 80),
        lambda: socket.gethostbyname("example.com"),
        lambda: socket.gethostbyname_ex("example.com"),
        lambda: socket.socket().connect(("192.0.2.1", 80)),
        lambda: socket.socket().connect_ex(("192.0.2.1", 80)),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendmsg([b"x"], [], 0, ("192.0.2.1", 53)),
        lambda: socket.socket(socket.AF_INET6).connect(("2001:db8::1", 80)),
    ],
)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_other_machines_are_not(offline: None, reach: Callable[[], Any]):
    with pytest.raises(PermissionError, match="--allow-network"):
        reach()


def test_its_own_names_and_numbers_are_looked_up(offline: None):
    for host in (None, "localhost", "127.0.0.1", "192.0.2.1", socket.gethostname()):
        try:
            socket.getaddrinfo(host, 80)
        except socket.gaierror:
            assert host == socket.gethostname()  # some machines do not know theirs


# ── folders ─────────────────────────────────────────────────────────────────────────────────────


def test_the_folder_of_a_command_that_was_killed_goes_with_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "autofit-script-of-others").mkdir()
    code = (
        "import os, signal; from autofit_workers.process.scratch import Notes, Scratch; scratch = Scratch(); "
        f"notes = Notes(scratch.folder); notes.made({str(tmp_path / 'made')!r}); "
        f"os.mkdir({str(tmp_path / 'made')!r}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT / "workers")}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 3
    living = Scratch()
    _sweep.cache_clear()
    other = Scratch()
    kept = {Path(living.folder).name, Path(other.folder).name, "autofit-script-of-others"}
    assert {each.name for each in tmp_path.iterdir()} == kept
    for each in (living, other):
        each.remove()
    assert [each.name for each in tmp_path.iterdir()] == ["autofit-script-of-others"]


# ── scripts ─────────────────────────────────────────────────────────────────────────────────────

_PREDICT = """
import json, sys
from autofit_workers.protocol import Probe, TrialSpec
from autofit_workers.run import run
from autofit_workers.scripts.reference import Script
from autofit_workers.setup import Setup
if __name__ == "__main__":
    path, setup, deadline = json.loads(sys.argv[1])
    outcome = run(TrialSpec(
        workload=Script(path=path).reference(), batch_size=8, probe=Probe.PREDICT,
        setup=Setup(**setup), deadline_seconds=deadline))
    print(outcome.to_json())
"""
_STEPS = """
import torch
model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8, num_workers=2)
for x in loader:
    optimizer.zero_grad(); model(x.cuda()).sum().backward(); optimizer.step()
"""


def _without_namespaces() -> list[str]:
    """What starts a command that can make no namespaces; nothing where none can be made anyway."""
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return command


@pytest.fixture
def predict(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Predicts a script of these lines before some steps, in `users/`, with `temporary/`; its outcome."""
    users, temporary = tmp_path / "users", tmp_path / "temporary"
    for each in (users, temporary):
        each.mkdir()

    def predicted(*lines: str, deadline: float = 120.0, **setup: Any) -> dict[str, Any]:
        path = users / "train.py"
        path.write_text(textwrap.dedent("\n".join(lines)) + _STEPS)
        environment = {
            **os.environ,
            "TMPDIR": str(temporary),
            "PYTHONPATH": f"{ROOT / 'workers'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        said = subprocess.run(
            [
                *_without_namespaces(),
                sys.executable,
                "-c",
                _PREDICT,
                json.dumps([str(path), setup, deadline]),
            ],
            cwd=users,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        outcome: dict[str, Any] = json.loads(said)
        if outcome["trace_json"]:
            notes = json.loads(outcome["trace_json"])["notes"]
            assert any(note.startswith(UNPROTECTED) for note in notes), notes
        return outcome

    return predicted


@pytest.mark.process
def test_nothing_of_a_script_takes_effect_to_its_last_thread(predict, tmp_path):
    users = tmp_path / "users"
    (users / "settings.json").write_text("{}")
    (users / "model.pt").write_text("of an earlier run")
    (tmp_path / "temporary" / "old").write_text("old")
    before = contents(users)
    outcome = predict(
        """
        import atexit, json, os, pathlib, tempfile, threading, weakref
        tempfile.mkdtemp()
        json.load(open("settings.json"))
        json.dump({"changed": 1}, open("settings.json", "w"))
        pathlib.Path("../temporary/old").write_text("new")
        os.makedirs("made/deep")
        class Kept:
            def __del__(self):
                open("model.pt", "w").close()
        kept, watched = Kept(), Kept()
        weakref.finalize(watched, lambda: open("of_finalize", "w").close())
        atexit.register(lambda: (open("model.pt", "w").close(), os.remove("settings.json")))
        atexit.register(lambda: os.system("touch of_exit"))
        def write():
            while True:
                open("model.pt", "w").close()
                os.close(os.open("of_thread", os.O_CREAT | os.O_WRONLY))
        threading.Thread(target=write).start()
        threading.Thread(target=write, daemon=True).start()
        """
    )
    assert outcome["verdict"] == "FITS", outcome["error"]
    after = contents(users)
    assert after.pop("train.py")
    assert after == before
    assert (tmp_path / "temporary" / "old").read_text() == "old"
    assert [each.name for each in (tmp_path / "temporary").iterdir()] == ["old"]
    assert outcome["sources"][str(users / "settings.json")] == hashlib.sha256(b"{}").hexdigest()


@pytest.mark.process
def test_processes_and_connections_of_a_script_are_refused_unless_they_are_allowed(predict, tmp_path):
    lines = """
        import os, socket, subprocess
        assert subprocess.check_output("uname -s", shell=True)
        open("written", "w").close()
        subprocess.run(["touch", "of_a_process"], check=True)
        """
    refused = predict(lines)
    assert "(touch of_a_process)" in refused["error"]["message"]
    assert "--allow-subprocesses" in refused["error"]["message"]
    allowed = predict(lines, allows_subprocesses=True)
    assert allowed["verdict"] == "FITS", allowed["error"]
    assert "other processes" in " ".join(json.loads(allowed["trace_json"])["notes"])
    assert (tmp_path / "users" / "of_a_process").exists()
    offline = predict("import socket; socket.create_connection(('192.0.2.1', 80), 1)")
    assert "connect to 192.0.2.1:80" in offline["error"]["message"]


@pytest.mark.process
def test_a_script_that_is_killed_leaves_nothing(predict, tmp_path):
    outcome = predict("import os, time", "os.makedirs('made/deep'); time.sleep(600)", deadline=15.0)
    assert outcome["verdict"] == "TIMEOUT"
    assert [each.name for each in (tmp_path / "users").iterdir()] == ["train.py"]
    assert not list((tmp_path / "temporary").glob("autofit-*"))
