"""Ways in which a predicted training script could change something outside, tried one by one.

    python tests/faults/side_effects.py [--denied] [--user UID] [--on overlay|tmpfs|read-only] [--only NAME …]

prints a table: each way of `side_effects_ways.txt`, what it said inside, and what it changed outside. The
ways run one after another in one script, which then trains three steps on a GPU and is predicted. What they
could change is made up for them and looked at before and after, from outside:

    files       a home, a project, caches, temporary files and remotes of git: contents, owners, rights,
                times, extended attributes, links
    network     what listening sockets were sent, by TCP, UDP and on this machine
    processes   one for each way that has to do with another: whether it lives, its priority, limits, …;
                and those that are left five seconds after the prediction
    memory      shared segments, semaphores and queues, by POSIX and System V
    machine     its name, its mounts, rights of its devices

`--denied` tries them where the kernel allows no user namespaces, but for those that would change the machine
that the tests run on. As root, all of it happens in mounts and processes of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import hashlib
import inspect
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import UNPROTECTED, Trace
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.isolate import Child, environment_of

_CATALOGUE = Path(__file__).with_name("side_effects_ways.txt")
_REPOSITORY = Path(__file__).parents[2]
GONE_SECONDS = 5.0
DONE, REFUSED = "done", "refused"
# What autofit must not hand on, and what looks like it to a test.
_SECRETS = {
    "HF_TOKEN": "hf_secret",
    "DATABASE_URL": "postgres://me:hf_secret@localhost/runs",
    "SSH_AUTH_SOCK": "/run/hf_secret",
}
_SEGMENT, _SEMAPHORE, _QUEUE = "sysv-memory", "sysv-semaphore", "sysv-queue"
_THEIR_SEGMENT = "sysv-memory-removed"
# Files of this machine that no way may change, if only by their rights.
_OF_THE_MACHINE = (
    "/dev/null",
    "/dev/zero",
    "/proc/uptime",
    os.path.realpath(sys.executable),
    "/etc",
    sys.prefix,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to change something; see the head of `side_effects_ways.txt`."""

    name: str
    lines: str
    flags: frozenset[str]
    needs: tuple[str, ...] = ()
    at: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        """Whether it fails inside the boundary."""
        return REFUSED in self.flags


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of one way.

    Attributes:
        outcome: `done`, `refused`, or nothing where it never said anything.
        said: what it saw of its effect, or the error.
        changed: what is different outside.
    """

    way: str
    outcome: str
    said: str
    changed: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What became of a catalogue.

    Attributes:
        tried: of each way.
        unexplained: changes that are no single way's.
        verdict: of the prediction.
        error: why there is none.
        note: what the answer says of the boundary, nothing inside it.
        left: the command lines of processes that were alive after `GONE_SECONDS`.
        left_out: ways for which something is missing here.
    """

    tried: tuple[Tried, ...]
    unexplained: tuple[str, ...]
    verdict: str
    error: str
    note: str
    left: tuple[str, ...]
    left_out: tuple[str, ...]


def catalogue() -> list[Way]:
    """All ways."""
    ways = []
    for text in f"\n{_CATALOGUE.read_text()}".split("\n== ")[1:]:
        head, _, lines = text.partition("\n")
        name, *words = head.split()
        told = {
            kind: tuple(w.partition(":")[2] for w in words if w.startswith(kind))
            for kind in ("needs:", "at:")
        }
        flags = frozenset(word for word in words if ":" not in word)
        ways.append(
            Way(name=name, lines=lines.strip("\n"), flags=flags, needs=told["needs:"], at=told["at:"])
        )
    return ways


def listing(folder: str) -> dict[str, list[Any]]:
    """All that is to be known of what is in a folder, by its path."""
    found: dict[str, list[Any]] = {}

    def add(path: str) -> None:
        seen = os.lstat(path)
        kind = stat.S_IFMT(seen.st_mode)
        content = ""
        if kind == stat.S_IFLNK:
            content = str(Path(path).readlink())
        elif kind == stat.S_IFREG:
            try:
                content = hashlib.sha1(Path(path).read_bytes()).hexdigest()
            except OSError as error:
                content = str(error.errno)
        try:
            attributes = {
                name: os.getxattr(path, name, follow_symlinks=False).hex()
                for name in os.listxattr(path, follow_symlinks=False)
            }
        except OSError:
            attributes = {}
        found[path] = [
            *(kind, stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid, seen.st_nlink, seen.st_size),
            *(seen.st_mtime_ns, seen.st_ctime_ns, content, attributes),
        ]
        if kind == stat.S_IFDIR:
            for entry in sorted(Path(path).iterdir()):
                add(str(entry))

    if os.path.lexists(folder):
        add(folder)
    return found


_HEAD = """
import ctypes, functools, hashlib, json, os, shutil, signal, socket, stat, struct, subprocess, sys
import threading, time
from pathlib import Path
from typing import Any
import numpy
import torch

places = json.loads(os.environ["EFFECTS_PLACES"])
base, token = Path(places["base"]), places["token"]
home = Path(os.environ["HOME"])
libc = ctypes.CDLL(None, use_errno=True)
victim = 0

def line_of(name, outcome, said):
    return (json.dumps([name, outcome, said[:200]]) + "\\n").encode()

def report(name, outcome, said):
    os.write(places["evidence"], line_of(name, outcome, said))

# Of what is global nothing is left as the program ends.
def saying(name):
    return functools.partial(os.write, places["evidence"], line_of(name, "done", "at the end"))

def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def sh(command):
    done = subprocess.run(command, shell=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise OSError(f"exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout

def attempt(name, way, is_late):
    global victim
    here = base / "project" / name
    victim = places["victims"].get(name, 0)
    os.chdir(here)
    before = listing(str(here))
    try:
        said = way(here)
        if is_late:
            return
        if not said:
            after = listing(str(here))
            said = " ".join(sorted({*before, *after} - {p for p in before if before[p] == after.get(p)}))
        report(name, "done" if said else "nothing", str(said).replace(str(here), "."))
    except BaseException as error:
        report(name, "refused", f"{type(error).__name__}: {error}".replace(str(here), "."))
    finally:
        os.chdir(base)
"""

_TRAINING = """
model = torch.nn.Linear(8, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

_STEPS = """
report("training", "done", "begins")
for _ in range(9):
    optimizer.zero_grad()
    model(torch.randn(int(os.environ["EFFECTS_BATCH"]), 8).cuda()).square().mean().backward()
    optimizer.step()
"""


def script_of(ways: Iterable[Way]) -> str:
    """A training script that goes these ways, and then trains."""
    parts = [_HEAD, inspect.getsource(listing), _TRAINING]
    for number, way in enumerate(ways):
        parts.append(f"def way_{number}(here):\n{textwrap.indent(way.lines, '    ')}\n")
        parts.append(f"attempt({way.name!r}, way_{number}, {'late' in way.flags})\n")
    return "\n".join([*parts, _STEPS])


class World:
    """What the ways could change, and how it is at a moment.

    Args:
        base: an empty folder.
        ways: those that will be tried.
    """

    def __init__(self, base: Path, ways: Sequence[Way]) -> None:
        self.base = base
        self.token = f"effects-{uuid.uuid4().hex[:12]}"
        self._ways = ways
        self._stack = contextlib.ExitStack()
        self.places: dict[str, Any] = {"base": str(base), "token": self.token}
        self.received: list[bytes] = []
        self._victims: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        with self._stack:
            self._make_files()
            self._make_sockets()
            self._make_victims()
            self._make_shared_memory()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def variables(self) -> dict[str, str]:
        """Those that lead a program to it."""
        folders = {"HOME": "home", "XDG_CACHE_HOME": "cache", "HF_HOME": "hf", "TMPDIR": "tmp"}
        named = {name: str(self.base / folder) for name, folder in folders.items()}
        return {**named, **_SECRETS, "EFFECTS_MARK": self.token}

    def _make_files(self) -> None:
        base = self.base
        for name in (
            "home/.cache",
            "home/.ssh",
            "cache/folder",
            "hf",
            "tmp",
            "remotes",
            "machine/spool/cron",
            "project",
        ):
            (base / name).mkdir(parents=True, exist_ok=True)
        for name in (
            *(
                "home/.bashrc",
                "home/.ssh/authorized_keys",
                "home/.netrc",
                "home/.cache/home-cache-overwritten",
            ),
            *("home/.cache/home-cache-removed", "cache/folder/inner", "hf/token", "tmp/others", "tmp/theirs"),
        ):
            (base / name).write_text("before\n")
        (base / "home/.gitconfig").write_text("[user]\n\tname = before\n")
        for way in self._ways:
            self._make_folder(base / "project" / way.name, way)

    def _make_folder(self, here: Path, way: Way) -> None:
        (here / "folder").mkdir(parents=True)
        for name in ("kept.txt", "folder/inner.txt"):
            (here / name).write_text("before\n")
        (here / "kept.bin").write_bytes(bytes(8192))
        (here / "empty").touch()
        (here / "link").symlink_to("kept.txt")
        with contextlib.suppress(OSError):  # a file system without
            os.setxattr(here / "kept.txt", "user.before", b"1")
        if way.name.startswith("sqlite"):
            import sqlite3

            with contextlib.closing(sqlite3.connect(here / "runs.db")) as connection:
                connection.execute("create table runs (loss real)")
                connection.execute("insert into runs values (1.5)")
                connection.commit()
        if way.name.startswith("git-") and way.name != "git-config-global":
            remote = self.base / "remotes" / way.name
            (here / "tracked.txt").write_text("before\n")
            commands = (
                f"git init -q --bare {remote}",
                "git init -q .",
                "git add tracked.txt",
                f"git remote add origin {remote}",
                "git -c user.name=me -c user.email=me@here commit -q -m before",
                "git push -q origin HEAD:main",
            )
            for command in commands:
                environment = {**os.environ, **self.variables()}
                subprocess.run(command.split(), cwd=here, check=True, env=environment)
        if way.name.startswith("pip-"):
            with zipfile.ZipFile(here / "probe-1-py3-none-any.whl", "w") as wheel:
                wheel.writestr("probe.py", "x = 1\n")
                wheel.writestr(
                    "probe-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: probe\nVersion: 1\n"
                )
                wheel.writestr(
                    "probe-1.dist-info/WHEEL",
                    "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                )
                wheel.writestr("probe-1.dist-info/RECORD", "probe.py,,\n")
        if "umount" in way.name:
            mounted = self.base / "mounted" / way.name
            mounted.mkdir(parents=True)
            with contextlib.suppress(OSError):  # not root
                _mount("tmpfs", mounted)
            (mounted / "inner.txt").write_text("before\n")

    def _make_sockets(self) -> None:
        project = self.base / "project"
        os.mkfifo(project / "its.pipe")
        reader = os.open(project / "its.pipe", os.O_RDWR | os.O_NONBLOCK)
        self._stack.callback(os.close, reader)
        ours, theirs = os.openpty()
        os.set_blocking(ours, False)
        for number in (ours, theirs):
            self._stack.callback(os.close, number)
        self.places |= {
            "fifo": str(project / "its.pipe"),
            "terminal": os.ttyname(theirs),
            "abstract": self.token,
        }
        self.places |= {
            "unix": str(self.base / "home/agent.sock"),
            "project_unix": str(project / "agent.sock"),
        }
        streams = [
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True),
            *(
                _listening(address)
                for address in (self.places["unix"], self.places["project_unix"], f"\0{self.token}")
            ),
        ]
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", 0))
        self.places |= {"tcp": streams[0].getsockname()[1], "udp": datagrams.getsockname()[1]}
        self._selector = selectors.DefaultSelector()
        for each in streams:
            self._selector.register(each, selectors.EVENT_READ, "stream")
        for other in (datagrams, reader, ours):
            self._selector.register(other, selectors.EVENT_READ, "")
        self._stopping, stop = os.pipe()
        self._selector.register(self._stopping, selectors.EVENT_READ, "stop")
        thread = threading.Thread(target=self._receive)
        thread.start()
        for each in (*streams, datagrams, self._selector):
            self._stack.callback(each.close)
        self._stack.callback(os.close, self._stopping)
        self._stack.callback(thread.join)
        self._stack.callback(os.close, stop)

    def _receive(self) -> None:
        while True:
            for key, _ in self._selector.select():
                source = key.fileobj
                if key.data == "stop":
                    return
                if key.data == "stream":
                    accepted, _ = source.accept()
                    self._selector.register(accepted, selectors.EVENT_READ, "accepted")
                    continue
                try:
                    data = source.recv(4096) if isinstance(source, socket.socket) else os.read(source, 4096)
                except OSError:
                    data = b""
                if data or key.data == "accepted":  # who said nothing has come all the same
                    self.received.append(data)
                if key.data == "accepted":
                    self._selector.unregister(source)
                    source.close()

    def _make_victims(self) -> None:
        for way in self._ways:
            if "victim" in way.lines:
                process = subprocess.Popen(
                    ["sleep", "1000"], start_new_session=True, env={**os.environ, **_SECRETS}
                )
                self._victims[way.name] = process
                self._stack.callback(process.wait)
                self._stack.callback(process.kill)
        self.places["victims"] = {name: process.pid for name, process in self._victims.items()}

    def _make_shared_memory(self) -> None:
        first = 0x10000000 + uuid.uuid4().int % 0x10000000
        names = (_SEGMENT, _SEMAPHORE, _QUEUE, _THEIR_SEGMENT)
        self.places["keys"] = {name: first + number for number, name in enumerate(names)}
        libc = _libc()
        for name in ("shared-memory-theirs", "shared-memory-removed"):
            path = Path("/dev/shm", f"{self.token}-{name}")
            path.write_bytes(bytes(64))
            self._stack.callback(path.unlink, missing_ok=True)
        segment = libc.shmget(self.places["keys"][_THEIR_SEGMENT], ctypes.c_size_t(4096), 0o1600)
        self._stack.callback(libc.shmctl, segment, 0, None)
        queue = libc.mq_open(f"/{self.token}-theirs".encode(), os.O_CREAT | os.O_RDWR, 0o600, None)
        self._queue = queue
        self._stack.callback(libc.mq_unlink, f"/{self.token}-theirs".encode())
        if queue >= 0:
            self._stack.callback(os.close, queue)
        for kind, name in ((libc.shmget, _SEGMENT), (libc.semget, _SEMAPHORE), (libc.msgget, _QUEUE)):
            self._stack.callback(self._remove_made, kind, name)
        self._stack.callback(libc.mq_unlink, f"/{self.token}-posix-queue".encode())
        for each in ("shared-memory-new", "shared-memory-file"):
            self._stack.callback(Path("/dev/shm", f"{self.token}-{each}").unlink, missing_ok=True)
        self._stack.callback(Path(f"/dev/shm/sem.{self.token}-posix-semaphore").unlink, missing_ok=True)

    def _remove_made(self, get: Any, name: str) -> None:
        libc, key = _libc(), self.places["keys"][name]
        number = get(key, 0) if name == _QUEUE else get(key, ctypes.c_size_t(0), 0)
        if number >= 0:
            {_SEGMENT: libc.shmctl, _QUEUE: libc.msgctl}.get(name, lambda *_: libc.semctl(number, 0, 0))(
                number, 0, None
            )

    def state(self) -> dict[str, Any]:
        """How everything is now, by what it is."""
        found: dict[str, Any] = {}
        for folder in ("home", "project", "mounted", "cache", "hf", "tmp", "remotes", "machine"):
            for path, known in listing(str(self.base / folder)).items():
                found[os.path.relpath(path, self.base)] = known
        del found["tmp"][6:8]  # its times: the command's own folder was in it
        for name, process in self._victims.items():
            found[f"victim/{name}"] = _state_of(process)
        for path, known in listing("/dev/shm").items():
            if self.token in path:
                found[path.replace(f"{self.token}-", "")] = known
        libc = _libc()
        number = libc.mq_open(f"/{self.token}-posix-queue".encode(), os.O_RDONLY)
        found["queue/posix-queue"] = number >= 0
        if number >= 0:
            os.close(number)
        if self._queue >= 0:
            held = (ctypes.c_long * 8)()
            libc.mq_getattr(self._queue, held)
            found["queue/posix-queue-theirs"] = held[3]
        for kind in ("shm", "sem", "msg"):
            lines = Path("/proc/sysvipc", kind).read_text().splitlines()[1:]
            keys = {int(line.split()[0]) for line in lines}
            for name, key in self.places["keys"].items():
                found[f"sysvipc/{kind}/{name}"] = key in keys
        found["machine-hostname"] = os.uname().nodename
        found["machine-domain"] = Path("/proc/sys/kernel/domainname").read_text()
        found["mounts"] = Path("/proc/self/mountinfo").read_text()
        for path in _OF_THE_MACHINE:
            seen = Path(path).stat()
            # The times of folders that others use change.
            times = (
                (seen.st_mtime_ns, seen.st_ctime_ns)
                if stat.S_ISREG(seen.st_mode) and path[:5] != "/proc"
                else ()
            )
            found[f"machine {path}"] = [seen.st_mode, seen.st_uid, seen.st_gid, *times]
        for folder in ("/etc", sys.prefix):
            found[f"machine {folder}/{self.token}"] = os.path.lexists(f"{folder}/{self.token}")
        return found


def _listening(address: str) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    return server


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _mount(kind: str, target: Path, data: str = "", flags: int = 0, source: str = "none") -> None:
    arguments = (source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    if _libc().mount(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(target))


def _state_of(process: subprocess.Popen[bytes]) -> list[Any]:
    if process.poll() is not None:
        return ["dead", process.returncode]
    pid = process.pid
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [
        "stopped" if fields[0] in "tT" else "alive",
        os.getpriority(os.PRIO_PROCESS, pid),
        os.sched_getscheduler(pid),
        sorted(os.sched_getaffinity(pid)),
        resource.prlimit(pid, resource.RLIMIT_NOFILE),
        Path(f"/proc/{pid}/oom_score_adj").read_text(),
        Path(f"/proc/{pid}/status").read_text().partition("TracerPid:")[2].split()[0],
    ]


def processes_with(token: str, apart_from: Iterable[int] = ()) -> dict[int, str]:
    """The living processes that have a word in their environment, their command or their folder."""
    found, spared = {}, {os.getpid(), *apart_from}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            words = command + (entry / "environ").read_bytes() + os.fsencode((entry / "cwd").readlink())
            is_dead = "\nState:\tZ" in (entry / "status").read_text()
            if token.encode() in words and not is_dead and int(entry.name) not in spared:
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def left_after(token: str, seconds: float = GONE_SECONDS) -> dict[int, str]:
    """Those of them that are there still after so long."""
    give_up = time.monotonic() + seconds
    while (found := processes_with(token)) and time.monotonic() < give_up:
        time.sleep(0.05)
    return found


def can_unshare(*options: str) -> bool:
    """Whether this machine lets a process have namespaces, by default of users."""
    command = ["unshare", *(options or ("--user",)), "true"]
    return shutil.which("unshare") is not None and not subprocess.run(command, check=False).returncode


def attempt_all(base: Path, ways: Sequence[Way], made: Callable[[Path], None] = lambda _: None) -> Found:
    """Tries ways in the file tree below a folder; `made` is called with the project once it is there."""
    usable = [way for way in ways if all(shutil.which(each) for each in way.needs)]
    with World(base, usable) as world:
        made(base / "project")
        script = base / "train.py"
        script.write_text(script_of(usable))
        heard, evidence = os.pipe()
        os.set_blocking(heard, False)
        places = json.dumps({**world.places, "evidence": evidence})
        os.environ.update({**world.variables(), "EFFECTS_PLACES": places})
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(_REPOSITORY), os.environ.get("PYTHONPATH", "")]
        ).strip(":")
        before, said = world.state(), _Said(heard)
        reader = threading.Thread(target=said.listen)
        outcome = _predicted(script, evidence, reader)
        left = left_after(str(base))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.close(evidence)
        said.end()
        reader.join()
        os.close(heard)
        changes = _changes(before, world.state())
        for data in world.received:
            changes[f"received {' '.join(data.decode(errors='replace').split())!r}"] = ""
        if "\x1b" in outcome.log_tail:
            changes["terminal-escapes in the log"] = ""
        for name, _, told in said.lines:
            if told.startswith("LEAKED"):
                changes[f"told/{name}"] = ""
        return _found(
            usable,
            lines=said.lines,
            kinds=changes,
            outcome=outcome,
            left=left,
            left_out=[way.name for way in ways if way not in usable],
        )


class _Said:
    """What the ways say, by a pipe that they write to."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._is_over = pipe, threading.Event()
        self._text = b""

    def listen(self) -> None:
        """Reads until it is over, for whoever has the other end may keep it."""
        while True:
            is_over = self._is_over.is_set()
            try:
                self._text += os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                if is_over:
                    return
                self._is_over.wait(0.02)
            else:
                if is_over:
                    return

    def end(self) -> None:
        self._is_over.set()

    @property
    def lines(self) -> list[tuple[str, str, str]]:
        return [tuple(json.loads(line)) for line in self._text.decode().splitlines()]


def _predicted(script: Path, evidence: int, reader: threading.Thread) -> TrialOutcome:
    spec = TrialSpec(
        workload=Script(path=script, batch_variable="EFFECTS_BATCH").reference(),
        batch_size=4,
        probe=Probe.PREDICT,
        deadline_seconds=240,
    )
    reader.start()
    with Child(environment_of(spec), inherited=(evidence,), of_script=True) as child:
        return child.run(spec)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """What is different, and how."""
    found = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old != new:
            is_kept = (
                isinstance(old, list) and isinstance(new, list) and old[:6] + old[8:] == new[:6] + new[8:]
            )
            found[key] = "new" if old is None else "gone" if new is None else "times" if is_kept else "other"
    return found


def _found(
    ways: Sequence[Way],
    *,
    lines: Sequence[tuple[str, str, str]],
    kinds: Mapping[str, str],
    outcome: TrialOutcome,
    left: Mapping[int, str],
    left_out: Sequence[str],
) -> Found:
    said = {name: (how, text) for name, how, text in lines}
    changes = list(kinds)
    mine: dict[str, list[str]] = {way.name: [] for way in ways}
    unexplained = []
    for change in changes:
        owners = [way.name for way in ways if _is_of(way, change)]
        for name in owners:
            mine[name].append(f"{change} ({kinds[change]})" if kinds[change] else change)
        # A folder changes with what is in it.
        if not owners and not any(other.startswith(f"{change}/") for other in changes):
            unexplained.append(change)
    trace = None if outcome.trace_json is None else Trace.from_json(outcome.trace_json)
    notes = () if trace is None else trace.notes
    return Found(
        tried=tuple(
            Tried(way=way.name, outcome=how, said=text, changed=tuple(mine[way.name]))
            for way in ways
            for how, text in [said.get(way.name, ("", ""))]
        ),
        unexplained=tuple(unexplained),
        verdict=outcome.verdict.name,
        error="" if outcome.error is None else outcome.error.message,
        note=next((note for note in notes if note.startswith(UNPROTECTED)), ""),
        left=tuple(left.values()),
        left_out=tuple(left_out),
    )


def _is_of(way: Way, change: str) -> bool:
    if any(change == path or change.startswith(path) for path in way.at):
        return True
    words = change.replace("'", " ").replace("?", " ").replace("\\", " ").split()
    named = {part for word in words for part in word.split("/")}
    if way.name in named or f"sem.{way.name}" in named:
        return True
    known = {
        "machine-etc": "/etc/effects",
        "machine-installation": f"{sys.prefix}/effects",
        "machine-program": os.path.realpath(sys.executable),
    }
    return way.name in known and known[way.name] in change


def read(text: str) -> Found:
    """What `--json` printed."""
    data = json.loads(text)
    tried = tuple(Tried(**{**each, "changed": tuple(each["changed"])}) for each in data.pop("tried"))
    lists = {name: tuple(each) for name, each in data.items() if isinstance(each, list)}
    return Found(**{**data, **lists}, tried=tried)


def not_as_expected(found: Found, *, is_root: bool, is_read_only: bool = False) -> list[Tried]:
    """The ways that did not run inside as they should.

    Args:
        is_root: others may be refused what root may.
        is_read_only: whether the project is, so that whatever changes it is refused.
    """
    ways = {way.name: way for way in catalogue()}
    wrong = []
    for each in found.tried:
        way = ways[each.way]
        expected = {REFUSED} if way.is_refused else {DONE, ""} if "late" in way.flags else {DONE}
        if is_read_only:
            expected = {DONE, REFUSED, "", "nothing"} - ({DONE} if way.is_refused else set())
        elif "either" in way.flags or ("root" in way.flags and not is_root):
            expected = {DONE, REFUSED}
        if each.outcome not in expected:
            wrong.append(each)
    return wrong


def table(found: Found) -> str:
    """A line for each way."""
    width = max(len(each.way) for each in found.tried)
    lines = [f"{'way':{width}}  {'inside':8}  changed outside  (said)"]
    for each in found.tried:
        changed = " ".join(each.changed)[:60] or "nothing"
        said = " ".join(each.said.split())[:70]
        lines.append(f"{each.way:{width}}  {each.outcome or 'silent':8}  {changed}  ({said})")
    num_changed = sum(bool(each.changed) for each in found.tried)
    lines += [f"unexplained: {each}" for each in found.unexplained]
    lines += [f"left: {each}" for each in found.left]
    lines += [f"left out, as its program is missing: {each}" for each in found.left_out]
    lines.append(f"{found.verdict} {found.error} {found.note}".strip())
    lines.append(f"{len(found.tried)} ways, {num_changed} changed something")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--denied", action="store_true", help="where there are no user namespaces")
    parser.add_argument("--user", type=int, help="as this user, by number")
    parser.add_argument("--on", choices=("overlay", "tmpfs", "read-only"), help="the project's file system")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these ways alone")
    parser.add_argument("--json", action="store_true", help="print a document in the place of a table")
    parser.add_argument("--entered", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    given = list(sys.argv[1:] if argv is None else argv)
    if not arguments.entered:
        return _again(given, denied=arguments.denied)
    ways = [way for way in catalogue() if not arguments.only or way.name in arguments.only]
    if arguments.denied:
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        ways = [way for way in ways if "machine" not in way.flags]
    else:  # numbers of processes that are none inside
        with contextlib.suppress(OSError):
            Path("/proc/sys/kernel/ns_last_pid").write_text("20000")
    if arguments.on:
        ways = [way for way in ways if "slow" not in way.flags]
    base = Path(arguments.entered)
    (base / "project").mkdir()
    if arguments.on == "tmpfs":
        _mount("tmpfs", base / "project")
    if arguments.user is not None:
        _open_ways_to(sys.base_prefix, sys.prefix, _REPOSITORY, base=base)
        _become(arguments.user, base, base / "project")
    found = attempt_all(base, ways, _LATER_MOUNTS.get(arguments.on, lambda _: None))
    text = json.dumps(dataclasses.asdict(found)) if arguments.json else table(found)
    sys.stdout.write(f"{text}\n")
    return 0


def _again(given: list[str], *, denied: bool) -> int:
    """Runs this in a folder of its own, and as root in mounts and with numbers of processes of its own.

    Where it is denied, it is in a user namespace too, in which there can be no other.
    """
    users = ["--user", "--map-root-user", "--uts", "--ipc"] if denied else []
    own = ["unshare", *users, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    with tempfile.TemporaryDirectory(prefix="side-effects-", ignore_cleanup_errors=True) as base:
        Path(base).chmod(0o755)
        command = [sys.executable, "-P", __file__, *given, "--entered", base]
        return subprocess.run(
            [*(own if denied or os.geteuid() == 0 else ()), *command], check=False
        ).returncode


def _open_ways_to(*places: str | Path, base: Path) -> None:
    """Lets others through root's own folders to what they need, in the mounts of this process."""
    for place in map(Path, places):
        for folder in reversed(place.resolve().parents):
            if not folder.stat().st_mode & stat.S_IXOTH:
                over = Path(tempfile.mkdtemp(dir=base))
                for name in ("upper", "work"):
                    (over / name).mkdir()
                over.chmod(0o755)
                (over / "upper").chmod(0o755)
                _mount("overlay", folder, f"lowerdir={folder},upperdir={over}/upper,workdir={over}/work")


def _become(user: int, *folders: Path) -> None:
    for folder in folders:
        os.chown(folder, user, user)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    _libc().prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as if the program had been called by that user


def _mount_overlay(project: Path) -> None:
    for name in ("upper", "work"):
        (project.parent / "machine" / name).mkdir()
    upper, work = (project.parent / "machine" / name for name in ("upper", "work"))
    _mount("overlay", project, f"lowerdir={project},upperdir={upper},workdir={work}")


def _mount_read_only(project: Path) -> None:
    bind, remount, read_only = 0x1000, 0x20, 0x1
    _mount("none", project, flags=bind, source=str(project))
    _mount("none", project, flags=bind | remount | read_only)


_LATER_MOUNTS = {"overlay": _mount_overlay, "read-only": _mount_read_only}


if __name__ == "__main__":
    sys.exit(main())
