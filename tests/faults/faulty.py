"""Workloads that go wrong in every way that a trial can; loaded by trials' processes, by path."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import pathlib
import resource
import signal
import sys
import threading

import torch

from autofit_workers.spec.errors import DataDependentError
from autofit_workers.workload.workload import Workload

MIB = 2**20
_MOST_MIB = 4096  # where a leak ends although nobody ended it
_leaked: list[mmap.mmap] = []


def _model():
    return torch.nn.Linear(8, 4)


def _batch(batch_size, device):
    return torch.ones(batch_size, 8, device=device)


def _loss(model, batch):
    return model(batch).sum()


def _workload(**parts):
    usual = {"build_model": _model, "make_batch": _batch, "loss": _loss, "optimizer": "adam"}
    return Workload(**{**usual, **parts})


def healthy():
    return _workload()


def chatty():
    """Writes what it finds in its process."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    sys.stdout.write(f"sys.path[0] is {sys.path[0]!r}; CUDA_VISIBLE_DEVICES is {gpus!r}")
    return _workload()


def hang():
    """Hangs after it started a process of its own, whose number it leaves in FAULTY_PID_FILE."""

    def loss(model, batch):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        pathlib.Path(os.environ["FAULTY_PID_FILE"]).write_text(str(pid))
        threading.Event().wait()

    return _workload(loss=loss)


def stopped():
    """Stops in its third step, as a process does whose terminal or cluster suspends it."""
    num_losses = 0

    def loss(model, batch):
        nonlocal num_losses
        num_losses += 1
        if num_losses == 3:
            os.kill(os.getpid(), signal.SIGSTOP)
        return _loss(model, batch)

    return _workload(loss=loss)


def deadlocked():
    """Sleeps for an hour with the interpreter's lock held, as a deadlock in a C extension does."""
    return _workload(loss=lambda model, batch: ctypes.PyDLL(None).sleep(3600))


def slow():
    """Has an operator of six seconds that lets the interpreter's other threads run."""

    def build_model():
        ctypes.CDLL(None).sleep(6)
        return _model()

    return _workload(build_model=build_model)


def leaks_shared_memory():
    """Keeps more and more of what counts as nobody's private memory."""

    def loss(model, batch):
        for _ in range(_MOST_MIB // 32):
            _leaked.append(mmap.mmap(-1, 32 * MIB))
            _leaked[-1].write(b"\1" * (32 * MIB))
        return _loss(model, batch)

    return _workload(loss=loss)


def forks_memory():
    """Has helpers that each stay below the limit and together do not."""

    def loss(model, batch):
        for _ in range(_MOST_MIB // 256):
            if os.fork() == 0:
                held = bytearray(b"\1" * (128 * MIB))
                signal.pause()
                del held
        signal.pause()

    return _workload(loss=loss)


def _escape(then):
    """Runs something in a process that leaves group, session, parent and environment, and hears of it."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.dup2(writer, 1)
            os.execve(sys.executable, [sys.executable, "-S", "-c", then], {})
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as escaped:
        return escaped.readline()


def leaves_a_daemon():
    """Fits, and leaves a process behind that hides in every way, whose number is in FAULTY_PID_FILE."""
    begun = []

    def loss(model, batch):
        if not begun:
            begun.append(_escape("import os, signal; print(os.getpid(), flush=True); signal.pause()"))
            pathlib.Path(os.environ["FAULTY_PID_FILE"]).write_text(begun[0])
        return _loss(model, batch)

    return _workload(loss=loss)


def hoards_in_daemons():
    """Has such processes that each stay below the limit and together do not."""

    def loss(model, batch):
        for _ in range(_MOST_MIB // 256):
            _escape(f"import signal; held = b'1' * {128 * MIB}; print(flush=True); signal.pause()")
        signal.pause()

    return _workload(loss=loss)


def floods():
    """Prints a gigabyte between two words."""

    def loss(model, batch):
        sys.stdout.write("alpha\n")
        for _ in range(1024):
            sys.stdout.write("x" * MIB)
        sys.stdout.write("\nomega\n")
        return _loss(model, batch)

    return _workload(loss=loss)


def killed():
    def loss(model, batch):
        os.kill(os.getpid(), signal.SIGKILL)

    return _workload(loss=loss)


def mistaken():
    def loss(model, batch):
        return model(batch) + "one"

    return _workload(loss=loss)


def leaving():
    def loss(model, batch):
        raise SystemExit(3)

    return _workload(loss=loss)


def hungry():
    """Needs 64 MiB per sample beyond what the budget of the tests allows for many of them."""

    def loss(model, batch):
        kept = torch.ones(batch.shape[0] * 64 * MIB // 4)
        return model(batch).sum() + kept.sum()

    return _workload(loss=loss)


def _limited():
    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY


def unnamed_error_under_limit():
    """Fails under a limit as oneDNN does, without a word of memory."""

    def loss(model, batch):
        if _limited():
            raise RuntimeError("could not execute a primitive")
        return _loss(model, batch)

    return _workload(loss=loss)


def unnamed_error_that_stays():
    """Fails under a limit and from then on, as what it leaves behind cannot be used again."""
    failed = []

    def loss(model, batch):
        if _limited() or failed:
            failed.append(batch)
            raise RuntimeError("could not execute a primitive")
        return _loss(model, batch)

    return _workload(loss=loss)


def unnamed_error_always():
    def loss(model, batch):
        raise SystemError("returned NULL without setting an exception")

    return _workload(loss=loss)


def crash():
    """Reads address zero, as a library does that never looks at what malloc returned."""

    def loss(model, batch):
        ctypes.string_at(0)

    return _workload(loss=loss)


def garbled():
    """Writes into the pipe of the outcomes, as a stray descriptor would."""

    def loss(model, batch):
        for entry in pathlib.Path("/proc/self/fd").iterdir():
            if entry.is_fifo() and fcntl.fcntl(int(entry.name), fcntl.F_GETFL) & os.O_WRONLY:
                os.write(int(entry.name), b"no outcome\n")
        return _loss(model, batch)

    return _workload(loss=loss)


def ignores_batch_size():
    return _workload(make_batch=lambda batch_size, device: torch.ones(2, 8, device=device))


def vacuous():
    return _workload(step=lambda model, optimizer, batch: None)


def data_dependent():
    def loss(model, batch):
        raise DataDependentError("aten::nonzero depends on values: measure instead")

    return _workload(loss=loss)


def _of_rank_one(fault):
    """Goes wrong in the second step of rank 1 alone, while the others wait for it in a collective."""
    num_losses = 0

    def loss(model, batch):
        nonlocal num_losses
        num_losses += 1
        if num_losses == 2 and os.environ["RANK"] == "1":
            fault(batch)
        return _loss(model, batch)

    return _workload(loss=loss)


def killed_rank():
    return _of_rank_one(lambda batch: os.kill(os.getpid(), signal.SIGKILL))


def hung_rank():
    return _of_rank_one(lambda batch: threading.Event().wait())


def hungry_rank():
    return _of_rank_one(lambda batch: torch.ones(batch.shape[0] * 256 * MIB))


def mistaken_rank():
    return _of_rank_one(lambda batch: batch + "one")


def rank_with_unnamed_error_under_limit():
    def fault(batch):
        if _limited():
            raise RuntimeError("could not execute a primitive")

    return _of_rank_one(fault)


def sharded_ranks():
    """A model of some 32 MiB whose parameters ranks may share."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    def build_model():
        model = torch.nn.Sequential(torch.nn.Linear(8, MIB // 2), torch.nn.Linear(MIB // 2, 8))
        model.tp_plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        return model

    return _workload(build_model=build_model, optimizer="sgd-momentum")


def waiting_ranks():
    """Leaves the numbers of its processes in FAULTY_PID_FILE; then rank 0 waits for rank 1, which hangs."""

    def loss(model, batch):
        with pathlib.Path(os.environ["FAULTY_PID_FILE"]).open("a") as file:
            file.write(f"{os.getpid()}\n")
        if os.environ["RANK"] == "1":
            threading.Event().wait()
        return _loss(model, batch)

    return _workload(loss=loss)


def uneven_ranks():
    """Has 64 MiB more on rank 1."""

    def loss(model, batch):
        kept = torch.ones(int(os.environ["RANK"]) * 64 * MIB // 4)
        return _loss(model, batch) + kept.sum()

    return _workload(loss=loss)
