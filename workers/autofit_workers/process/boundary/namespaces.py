"""Processes between a command and a workload inside the boundary: how they start and end.

    command ── starts ──▶ warden          outside; ends what is inside once the command is gone
                            └ door        in new namespaces, but for processes
                                └ first   process 1 of a new process namespace: makes the tree, reaps orphans
                                    └ the workload's process, which goes on from `go_inside`

Each of them that ends takes the ones below along: the kernel kills the door and the first process
(PR_SET_PDEATHSIG), and all others because their process 1 is gone. A pipe reports how the workload's process
ended, as process 1 cannot be ended by a signal of its own.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from autofit_workers.process.boundary import kernel
from autofit_workers.process.boundary.permissions import Entered
from autofit_workers.process.boundary.tree import enter_tree


def go_inside(
    life: int,
    *,
    most_bytes: int,
    network: bool,
    closed: tuple[int, ...] = (),
    writable: Collection[str] | None = None,
) -> Entered:
    """Forks a process that continues inside the process boundary, and supervises it from outside.

    Two processes may return from this call. If the kernel allows the boundary, only the new process inside
    returns; the calling process waits for it and then exits with its status. If the kernel refuses, the
    calling process returns, with the reason. The calling process must have a single thread.

    Args:
        life: file descriptor of a pipe from the autofit command; when the command ends, the pipe closes and
            the processes inside are killed.
        most_bytes: bytes that the workload may write in all.
        network: whether the workload may use the machine's network.
        closed: file descriptors to close in the supervising processes, so that only the workload's process
            keeps them open.
        writable: see `enter_tree`.
    """
    told, tell = os.pipe()  # a line on how entering went; then how the workload's process ended
    mapped, map_now = os.pipe()
    door = os.fork()
    if door == 0:
        os.close(told)
        os.close(map_now)
        kept = (life, *closed)
        return _through_the_door(
            tell, mapped, kept, most_bytes=most_bytes, network=network, writable=writable
        )
    os.close(tell)
    os.close(mapped)
    reason = _line(told)
    if not reason:
        reason = map_users(door)
        os.write(map_now, b"\n")
    reason = reason or _line(told)
    os.close(map_now)
    if reason:
        with suppress(ProcessLookupError):
            os.kill(door, signal.SIGKILL)
        os.waitpid(door, 0)
        os.close(told)
        return Entered(is_inside=False, reason=reason)
    _close(*closed)
    return _stand_by(door, told, life)


def _through_the_door(
    tell: int,
    mapped: int,
    kept: tuple[int, ...],
    *,
    most_bytes: int,
    network: bool,
    writable: Collection[str] | None,
) -> Entered:
    """Creates the boundary's namespaces and their first process; returns in the workload's process alone.

    Args:
        tell: pipe to the process outside, which reads the progress, an error, and at last the exit status.
        mapped: pipe that gives a byte once the process outside has mapped the user ids.
        kept: file descriptors that only the workload's process keeps open.
        most_bytes, network, writable: see `go_inside`.
    """
    try:
        kernel.unshare(
            kernel.CLONE_NEWUSER
            | kernel.CLONE_NEWNS
            | kernel.CLONE_NEWPID
            | kernel.CLONE_NEWIPC
            | (0 if network else kernel.CLONE_NEWNET)
        )
        os.write(tell, b"\n")
        os.read(mapped, 1)
        os.close(mapped)
        kernel.die_with_parent(signal.SIGKILL)  # after `unshare`, which resets it
        first = os.fork()
    except OSError as error:
        _give_up(tell, error)
    if first:
        _close(tell, *kept)
        os.waitpid(first, 0)
        os._exit(0)
    try:
        kernel.die_with_parent(signal.SIGKILL)
        missing = enter_tree(most_bytes, writable)
        if not network:
            kernel.bring_loopback_up()
        with suppress(OSError):  # without a session keyring, the workload has none either
            kernel.leave_session_keyring()
        kernel.drop_capabilities(kernel.OF_FILES if os.geteuid() == 0 else ())
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.write(tell, b"\n")
        workload = os.fork()
    except OSError as error:
        _give_up(tell, error)
    if workload:
        kernel.hide_from_others()  # its program is a file outside
        _close(*kept)
        _reap(workload, tell)
    os.close(tell)
    return Entered(is_inside=True, missing=missing)


def _close(*numbers: int) -> None:
    for number in numbers:
        os.close(number)


def _give_up(tell: int, error: OSError) -> NoReturn:
    os.write(tell, f"{error.strerror or error} ({error.filename or 'fork'})\n".encode())
    os._exit(1)


def map_users(door: int) -> str:
    """Maps user and group ids inside the new user namespace to equal ids outside.

    Args:
        door: id of the process that has entered the namespace.

    Returns:
        The error as text; empty if the ids are mapped.
    """
    try:
        process = Path("/proc", str(door))
        if os.geteuid() == 0:
            for name in ("uid_map", "gid_map"):
                lines = Path("/proc/self", name).read_text().splitlines()
                ranges = [line.split() for line in lines]
                (process / name).write_text(
                    "".join(f"{first} {first} {count}\n" for first, _, count in ranges)
                )
        else:
            (process / "setgroups").write_text("deny")
            (process / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1\n")
            (process / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1\n")
    except OSError as error:
        return f"{error.strerror} ({error.filename})"
    return ""


def _line(told: int) -> str:
    """Reads the next line from a pipe, without the newline; an empty line means success."""
    said = bytearray()
    while (byte := os.read(told, 1)) not in (b"\n", b""):
        said += byte
    return said.decode() or ("" if byte else "it ended")


def _reap(workload: int, tell: int) -> NoReturn:
    """Runs process 1 of the boundary: reaps all processes that end, and exits after the workload's.

    Args:
        workload: id of the workload's process.
        tell: pipe to the process outside, to which the workload's exit status is written.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ended, status = 0, 0
    while ended != workload:
        ended, status = os.wait()
    os.write(tell, struct.pack("i", status))
    os._exit(0)


def _stand_by(door: int, told: int, life: int) -> NoReturn:
    """Waits outside until the workload ends, and exits as it did; kills it if the autofit command ends first.

    Args:
        door: id of the process through which the boundary was entered; all processes inside die with it.
        told: pipe from which the workload's exit status is read.
        life: pipe that closes when the command ends.
    """
    faulthandler.disable()  # the workload's process has already printed the traceback of the signal
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    poll = select.poll()
    poll.register(told, select.POLLIN)
    poll.register(life, 0)  # only for the end of the pipe
    if told not in dict(poll.poll()):
        with suppress(ProcessLookupError):
            os.kill(door, signal.SIGKILL)
    said = os.read(told, 4)
    os.waitpid(door, 0)
    status = struct.unpack("i", said)[0] if said else signal.SIGKILL
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError, ValueError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 1)
