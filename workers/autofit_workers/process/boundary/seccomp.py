"""Seccomp: limits the system calls that a process and its children may make; see seccomp(2).

A filter is a program of Linux's packet filter. It reads the number and the arguments of a system call, and
decides whether the call takes place or fails with an error.
"""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence

from autofit_workers.process.boundary import kernel

# Allowed values of an argument, by its position; if empty, the call always fails.
Arguments = Mapping[int, Sequence[int]]

# Numbers of system calls on x86-64 and on 64-bit ARM: asm/unistd.h.
_NUMBERS = {
    "socket": (41, 198),
    "truncate": (76, 45),
    "ptrace": (101, 117),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "shmget": (29, 194),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
}
_MACHINES = {
    "x86_64": (0, 0xC000003E),
    "aarch64": (1, 0xC00000B7),
}  # column above; AUDIT_ARCH_… of linux/audit.h
_OTHER_TABLE = 0x40000000  # from this number on x86-64 has another table of calls

# linux/filter.h: load a word that describes the call, compare, return.
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_AT_NUMBER, _AT_MACHINE, _AT_ARGUMENTS = 0, 4, 16
_ALLOWED, _FAILS = 0x7FFF0000, 0x00050000  # linux/seccomp.h

# linux/resource.h and linux/ioprio.h: priority of one process, rather than of a group or a user.
_PRIORITY_OF_PROCESS, _IO_PRIORITY_OF_PROCESS = 0, 1
_FAMILIES = (socket.AF_INET, socket.AF_INET6, getattr(socket, "AF_NETLINK", 16))


def restrict_calls(*, truncates: bool) -> None:
    """Denies this process system calls that affect other processes and that Landlock has no rule for.

    Denied are calls that set other processes' priority, limits or CPU affinity, or access their memory;
    System V's shared memory, semaphores and queues; POSIX's queues; keys; `bpf`; sockets of other families
    than IP and netlink, such as Unix sockets; and `io_uring`, whose calls no filter sees.

    The process must be unable to gain further rights (`kernel.drop_capabilities`).

    Args:
        truncates: whether the process may shorten files by their paths.

    Raises:
        OSError: the kernel does not allow it.
    """
    own = (0, os.getpid())
    install(
        {
            "socket": {0: _FAMILIES},
            "setpriority": {0: (_PRIORITY_OF_PROCESS,), 1: own},
            "ioprio_set": {0: (_IO_PRIORITY_OF_PROCESS,), 1: own},
            **{name: {0: own} for name in _NUMBERS if name.startswith(("sched_set", "prlimit"))},
            **{name: {} for name in _NUMBERS if name.startswith(("shm", "sem", "msg", "mq_"))},
            **{name: {} for name in ("add_key", "request_key", "keyctl", "bpf", "io_uring_setup")},
            **{name: {} for name in ("ptrace", "process_vm_writev", "pidfd_getfd")},
            **({} if truncates else {"truncate": {}}),
        }
    )


def install(rules: Mapping[str, Arguments]) -> None:
    """Installs a filter that fails the named system calls with EPERM unless their arguments are allowed.

    Raises:
        OSError: the kernel does not allow it, or the machine is neither x86-64 nor 64-bit ARM.
    """
    if platform.machine() not in _MACHINES:
        raise OSError(f"the numbers of calls are not known on {platform.machine()}")
    column, machine = _MACHINES[platform.machine()]
    program = [
        *_answer_unless(_AT_MACHINE, (machine,), errno.ENOSYS),
        _step(_LOAD, _AT_NUMBER),
        _step(_JUMP_IF_AT_LEAST, _OTHER_TABLE, 0, 1),
        _step(_RETURN, _FAILS | errno.ENOSYS),
    ]
    for name, arguments in rules.items():
        program += _rule(_NUMBERS[name][column], arguments)
    program.append(_step(_RETURN, _ALLOWED))
    kernel.set_filter(program)


def _rule(number: int, arguments: Arguments) -> list[bytes]:
    checks: list[bytes] = []
    for position, allowed in arguments.items():
        # The lower half of the argument: these are 32-bit arguments, on little-endian machines.
        checks += _answer_unless(_AT_ARGUMENTS + 8 * position, allowed, errno.EPERM)
    checks.append(_step(_RETURN, _ALLOWED if arguments else _FAILS | errno.EPERM))
    return [_step(_LOAD, _AT_NUMBER), _step(_JUMP_IF_EQUAL, number, 0, len(checks)), *checks]


def _answer_unless(place: int, allowed: Iterable[int], error: int) -> list[bytes]:
    """Filter instructions that go on to the next rule if a word has an allowed value, else fail the call.

    Args:
        place: offset of the 32-bit word in the kernel's description of the call (`struct seccomp_data`).
        allowed: values of the word that are allowed.
        error: errno with which the system call fails otherwise.
    """
    values = [value & 0xFFFFFFFF for value in allowed]
    compared = [
        _step(_JUMP_IF_EQUAL, value, len(values) - place_of, 0) for place_of, value in enumerate(values)
    ]
    return [_step(_LOAD, place), *compared, _step(_RETURN, _FAILS | error)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
