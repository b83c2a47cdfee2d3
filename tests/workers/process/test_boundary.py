"""A predicted workload runs inside namespaces, where what it does has no effect."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from autofit_workers.process.boundary.mounts import visible_mounts
from autofit_workers.process.boundary.variables import is_secret, public
from autofit_workers.spec.pythons import arguments_for

WORKERS = Path(__file__).parents[3] / "workers"

# What a process does inside, and what it tells of it by its standard output.
_INSIDE = """
import json, os, sys
sys.path.insert(0, {workers!r})
from autofit_workers.process.boundary.namespaces import go_inside
{before}
life = int(sys.argv[1])
state = go_inside(life, most_bytes=2**26, network=False)
told = {{"inside": state.is_inside, "reason": state.reason, "missing": state.missing}}
if state.is_inside:
{body}
print(json.dumps(told), flush=True)
"""


@contextmanager
def inside(
    body: str, *, cwd: Path, before: str = "", by: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that goes inside and runs these lines, and the pipe that it lives by.

    Args:
        before: lines that it runs before.
        by: the command that starts it, where it is not started at once.
    """
    life, command = os.pipe()
    code = _INSIDE.format(
        workers=str(WORKERS),
        before=textwrap.dedent(before),
        body=textwrap.indent(textwrap.dedent(body), "    "),
    )
    with subprocess.Popen(
        [*by, sys.executable, *arguments_for(code), str(life)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=(life,),
    ) as process:
        os.close(life)
        try:
            yield process, command
        finally:
            with suppress(OSError):  # a test closed it
                os.close(command)


def ran(body: str, cwd: Path, *, before: str = "", by: tuple[str, ...] = ()) -> tuple[int, str]:
    """The exit code of such a process, and what it said."""
    with inside(body, cwd=cwd, before=before, by=by) as (process, _):
        said, _ = process.communicate(timeout=30)
    return process.returncode, said


def told(body: str, cwd: Path, *, before: str = "", by: tuple[str, ...] = ()) -> dict[str, object]:
    code, said = ran(body, cwd, before=before, by=by)
    assert code == 0, said
    found: dict[str, object] = json.loads(said)
    if not found["inside"]:
        pytest.skip(f"this machine has no boundary: {found['reason']}")
    return found


def test_what_is_written_can_be_read_back_and_is_nowhere_else(tmp_path: Path):
    (tmp_path / "kept.txt").write_text("before")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("a")
    found = told(
        """
        import pathlib, shutil, subprocess
        here = pathlib.Path.cwd()
        (here / "new.txt").write_text("new")
        (here / "kept.txt").write_text("after")
        shutil.rmtree(here / "folder")
        commands = "echo more >> kept.txt; ln kept.txt linked; chmod 000 kept.txt; mkdir folder"
        subprocess.run(commands, shell=True)
        told["seen"] = sorted(each.name for each in here.iterdir())
        told["home"] = pathlib.Path("~/autofit-was-here").expanduser().write_text("x")
        told["content"] = (here / "linked").read_text()
        """,
        tmp_path,
    )
    assert found["seen"] == ["folder", "kept.txt", "linked", "new.txt"]
    assert (found["content"], found["home"]) == ("aftermore\n", 1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "kept.txt"]
    assert ((tmp_path / "kept.txt").read_text(), (tmp_path / "folder" / "a").read_text()) == ("before", "a")
    assert (tmp_path / "kept.txt").stat().st_mode & 0o777 != 0
    assert not Path("~/autofit-was-here").expanduser().exists()


def test_a_listening_socket_of_the_machine_is_not_reached(tmp_path: Path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "socket"))
        local.listen()
        found = told(
            f"""
            import socket
            for name, family, address in (
                ("tcp", socket.AF_INET, ("127.0.0.1", {server.getsockname()[1]})),
                ("unix", socket.AF_UNIX, {str(tmp_path / "socket")!r}),
            ):
                try:
                    socket.socket(family).connect(address)
                    told[name] = "connected"
                except OSError as error:
                    told[name] = type(error).__name__
            own = socket.create_server(("127.0.0.1", 0))
            socket.create_connection(own.getsockname())
            told["own"] = "connected"
            """,
            tmp_path,
        )
    assert (found["tcp"], found["unix"]) == ("ConnectionRefusedError", "ConnectionRefusedError")
    assert found["own"] == "connected"


def test_processes_of_the_machine_cannot_be_seen_or_signalled(tmp_path: Path):
    found = told(
        f"""
        told["numbers"] = sorted(int(each) for each in os.listdir("/proc") if each.isdigit())
        try:
            os.kill({os.getpid()}, 0)
            told["signal"] = "sent"
        except ProcessLookupError:
            told["signal"] = "no such process"
        """,
        tmp_path,
    )
    assert found["numbers"] == [1, 2]
    assert found["signal"] == "no such process"


def test_what_was_laid_over_cannot_be_taken_away(tmp_path: Path):
    found = told(
        """
        import subprocess
        def code(command):
            return subprocess.run(command, shell=True, capture_output=True).returncode
        told["unmounted"] = code("umount -l " + os.getcwd() + " || umount -l /tmp")
        told["mounted"] = code("mount -t tmpfs none /tmp")
        told["nested"] = code("unshare --user --map-root-user --mount umount /tmp")
        try:
            open("/proc/sys/vm/swappiness", "w")
            told["sysctl"] = "opened"
        except OSError as error:
            told["sysctl"] = error.strerror
        """,
        tmp_path,
    )
    assert found["unmounted"] != 0
    assert found["mounted"] != 0
    assert found["nested"] != 0
    assert found["sysctl"] in ("Read-only file system", "Permission denied")


def test_rights_of_devices_and_of_the_machines_part_of_proc_stay(tmp_path: Path):
    # Others' users are refused by the files' owner, root by the mounts.
    found = told(
        """
        import stat
        for place in ("/dev/null", "/proc/cpuinfo", "/proc/sys/kernel/hostname"):
            try:
                os.chmod(place, stat.S_IMODE(os.stat(place).st_mode))
                told[place] = "changed"
            except OSError as error:
                told[place] = error.strerror
        told["written"] = os.write(os.open("/dev/null", os.O_WRONLY), b"x")
        told["own"] = open("/proc/self/comm", "w").write("renamed")
        """,
        tmp_path,
    )
    for place in ("/dev/null", "/proc/cpuinfo", "/proc/sys/kernel/hostname"):
        assert found[place] in ("Read-only file system", "Operation not permitted"), place
    assert (found["written"], found["own"]) == (1, 7)


def test_there_is_no_namespace_in_which_the_workload_is_root_again(tmp_path: Path):
    found = told(
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        told["result"] = libc.unshare(0x10000000), os.strerror(ctypes.get_errno())
        """,
        tmp_path,
    )
    assert found["result"] == [-1, "No space left on device"]


def test_a_pipe_of_a_read_only_mount_is_not_reached(tmp_path: Path):
    by = ("unshare", "--user", "--map-root-user", "--mount")
    if shutil.which("unshare") is None or subprocess.run([*by, "true"], check=False).returncode:
        pytest.skip("no mounts can be made here")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "kept.txt").write_text("before")
    bind = 'mount --bind "$PWD" "$PWD" && mount -o remount,ro,bind "$PWD" && cd "$PWD" && exec "$@"'
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        found = told(
            """
            for name, flags in (("pipe", os.O_NONBLOCK), ("kept.txt", 0)):
                try:
                    os.write(os.open(name, os.O_WRONLY | flags), b"x")
                    told[name] = "written"
                except OSError as error:
                    told[name] = error.strerror
            """,
            tmp_path,
            by=(*by, "sh", "-c", bind, "sh"),
        )
        assert (found["pipe"], found["kept.txt"]) == ("No such device or address", "Read-only file system")
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_keys_of_the_session_are_not_had(tmp_path: Path):
    before = """
    import ctypes, platform
    call = ctypes.CDLL(None, use_errno=True).syscall
    add, request, control = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[platform.machine()]
    has_keys = call(control, 1, None) >= 0  # a session keyring of its own
    has_keys = has_keys and call(add, b"user", b"autofit-secret", b"x", 1, -3) >= 0
    """
    found = told(
        """
        told["had"] = has_keys
        told["found"] = call(request, b"user", b"autofit-secret", None, 0) >= 0
        told["own"] = call(add, b"user", b"own", b"x", 1, -3) >= 0
        """,
        tmp_path,
        before=before,
    )
    if not found["had"]:
        pytest.skip("this kernel has no keyrings, or nobody may use them")
    assert (found["found"], found["own"]) == (False, True)


def test_the_program_of_a_process_inside_is_no_file_of_outside(tmp_path: Path):
    code = """
import os, sys
from autofit_workers.process.boundary.entering import entered, enter
enter(sys.argv[-1], int(sys.argv[-2]), os.open(os.devnull, os.O_WRONLY))
def refused(place):
    try:
        os.utime(place)
    except PermissionError:
        return "refused"
    return "changed"
if not entered().is_inside:
    print(entered().reason)
else:
    same = os.stat("/proc/self/exe").st_dev == os.stat(sys.executable).st_dev
    print("inside", same, refused("/proc/1/exe"))
"""
    life, command = os.pipe()
    permissions = json.dumps({"network": False, "kept_variables": []})
    environment = {**os.environ, "PYTHONPATH": str(WORKERS)}
    done = subprocess.run(
        [sys.executable, *arguments_for(code), str(life), permissions],
        cwd=tmp_path,
        env=environment,
        pass_fds=(life,),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    os.close(life)
    os.close(command)
    assert done.returncode == 0, done.stderr
    if not done.stdout.startswith("inside"):
        pytest.skip(f"this machine has no boundary: {done.stdout}")
    assert done.stdout == "inside True refused\n"


def test_what_is_written_has_a_limit(tmp_path: Path):
    found = told(
        """
        try:
            with open("large", "wb") as file:
                for _ in range(128):
                    file.write(bytes(2**20))
            told["end"] = "written"
        except OSError as error:
            told["end"] = error.strerror
        """,
        tmp_path,
    )
    assert found["end"] == "No space left on device"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_its_end_is_the_wardens(tmp_path: Path, number: signal.Signals):
    assert ran(f"os.kill(os.getpid(), {int(number)})", tmp_path)[0] == -number


def test_an_exit_code_is_the_wardens(tmp_path: Path):
    assert ran("os._exit(41)", tmp_path)[0] == 41


@pytest.mark.parametrize("whose", ["the command's", "the warden's"])
def test_nothing_outlives_it(tmp_path: Path, whose: str):
    mark = f"outlives-{os.getpid()}-{time.monotonic_ns()}"
    body = f"""
        import subprocess, time
        loop = "trap '' TERM HUP; while :; do sleep 1; done # {mark}"
        subprocess.Popen(["setsid", "sh", "-c", loop])
        print("started", flush=True)
        while True:
            time.sleep(1)
        """
    with inside(body, cwd=tmp_path) as (process, command):
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        if whose == "the command's":
            os.close(command)
        else:
            process.kill()
        process.wait(10)
    give_up = time.monotonic() + 5
    while left := [each for each in psutil.process_iter(["cmdline"]) if mark in str(each.info["cmdline"])]:
        assert time.monotonic() < give_up, left
        time.sleep(0.05)


def test_mounts_that_later_ones_hide_are_left_out():
    text = "\n".join(
        f"{number} 1 8:1 / {place} {options} - {kind} none {options}"
        for number, (place, kind, options) in enumerate(
            [
                ("/", "ext4", "rw"),
                ("/data", "ext4", "rw"),
                ("/data/a\\040b", "xfs", "ro"),
                ("/home", "ext4", "rw"),
                ("/home/me", "nfs", "rw"),
                ("/home", "tmpfs", "rw"),
            ]
        )
    )
    assert [(each.place, each.kind, each.is_writable) for each in visible_mounts(text)] == [
        ("/", "ext4", True),
        ("/data", "ext4", True),
        ("/home", "tmpfs", True),
        ("/data/a b", "xfs", False),
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HF_TOKEN", "hf_abc", True),
        ("RAY_AUTH_TOKEN", "x", True),
        ("WANDB_API_KEY", "x", True),
        ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("PGPASSWORD", "x", True),
        ("mysql_pwd_password", "x", True),
        ("SSH_AUTH_SOCK", "/run/ssh", True),
        ("DATABASE_URL", "postgres://me:pw@host/db", True),
        ("AUTOFIT_STORAGE_KEY", "x", True),
        ("PWD", "/home/me", False),
        ("PATH", "/usr/bin", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("PAD_TOKEN", "0", False),
        ("HF_HOME", "/data/hf", False),
        ("XDG_SESSION_TYPE", "tty", False),
        ("KEYBOARD", "us", False),
    ],
)
def test_a_secret_is_told_by_its_name_or_as_a_url(name: str, value: str, expected: bool):
    assert is_secret(name, value) is expected
    assert (name not in public({name: value})) is expected
    assert public({name: value}, kept=(name,)) == {name: value}


# What a process does that has no namespaces and restricts itself, and what it tells of it.
_RESTRICTED = """
import json, os, signal, socket, sys
sys.path.insert(0, {workers!r})
from autofit_workers.process.boundary.restrictions import restrict
state = restrict()
said = {{"files": state.files, "others": state.others, "calls": state.calls}}
def tell(name, act):
    try:
        act()
        said[name] = "done"
    except OSError as error:
        said[name] = type(error).__name__
{body}
print(json.dumps(said), flush=True)
"""


def restricted(body: str, cwd: Path, **environment: str) -> dict[str, object]:
    """What such a process says of each thing that it tries; the temporary folder is one below."""
    (cwd / "temporary").mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            _RESTRICTED.format(workers=str(WORKERS), body=textwrap.dedent(body)),
            str(os.getpid()),
        ],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(cwd / "temporary"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_restricted_process_and_what_it_starts_write_to_the_temporary_folder_alone(tmp_path: Path):
    (tmp_path / "kept").write_text("before")
    said = restricted(
        """
        tell("new", lambda: open("new", "w"))
        tell("kept", lambda: open("kept", "a"))
        tell("cut", lambda: os.truncate("kept", 0))
        tell("removed", lambda: os.remove("kept"))
        tell("renamed", lambda: os.rename("kept", "moved"))
        tell("linked", lambda: os.symlink("kept", "link"))
        tell("read", lambda: open("kept").read())
        tell("temporary", lambda: open("temporary/new", "w").write("new"))
        said["started"] = os.system("echo after 2> /dev/null > kept") != 0
        """,
        tmp_path,
    )
    if not said["files"]:
        pytest.skip("this machine lets nobody use Landlock")
    assert {name: said[name] for name in ("new", "kept", "cut", "removed", "renamed", "linked")} == (
        dict.fromkeys(("new", "kept", "cut", "removed", "renamed", "linked"), "PermissionError")
    )
    assert (said["read"], said["temporary"], said["started"]) == ("done", "done", True)
    assert (tmp_path / "kept").read_text() == "before"
    assert (tmp_path / "temporary" / "new").read_text() == "new"
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "temporary"}


def test_a_restricted_process_reaches_no_other(tmp_path: Path):
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    said = restricted(
        """
        other = int(sys.argv[1])
        tell("signal", lambda: signal.pidfd_send_signal(os.pidfd_open(other), 0))
        tell("environment", lambda: open(f"/proc/{other}/environ", "rb").read())
        tell("priority", lambda: os.setpriority(os.PRIO_PROCESS, other, 5))
        tell("priority of all", lambda: os.setpriority(os.PRIO_USER, 0, 5))
        tell("cores", lambda: os.sched_setaffinity(other, os.sched_getaffinity(other)))
        tell("own cores", lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)))
        tell("own priority", lambda: os.setpriority(os.PRIO_PROCESS, os.getpid(), os.getpriority(0, 0)))
        tell("own child", lambda: os.kill(child, 9) if (child := os.fork()) else signal.pause())
        tell("local socket", lambda: socket.socket(socket.AF_UNIX))
        tell("pair", lambda: socket.socketpair())
        tell("loopback", lambda: socket.create_server(("127.0.0.1", 0)))
        """,
        tmp_path,
    )
    if not (said["others"] and said["calls"]):
        pytest.skip("this kernel's Landlock has no rules for signals, or lets nobody use seccomp")
    refused = ("signal", "environment", "priority", "priority of all", "cores", "local socket")
    assert {name: said[name] for name in refused} == dict.fromkeys(refused, "PermissionError")
    own = ("own cores", "own priority", "own child", "pair", "loopback")
    assert {name: said[name] for name in own} == dict.fromkeys(own, "done")
    assert os.getpriority(os.PRIO_PROCESS, 0) == nice
