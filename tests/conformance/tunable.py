"""Workloads for whole searches: a prediction passes, and what goes wrong does so in real trials.

Each search copies this file into a folder of its own. What ran there is in its file `ran`, one line
for each trial's process: its number, that of the process above it, and the batch size.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import subprocess
import threading
from pathlib import Path

import torch

from autofit_workers.workload.workload import Workload

FOLDER = Path(__file__).parent
MIB = 2**20
MIB_PER_SAMPLE = 32
# A trial that nothing stopped would otherwise take the machine with it.
LEAK_LIMIT_BYTES = 6 * 2**30


def in_a_trial() -> bool:
    """Whether the kernel limits this process's memory, as it does in measured trials alone."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY


def is_first(name: str) -> bool:
    """True for the first trial that asks, of all processes."""
    try:
        (FOLDER / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _model():
    return torch.nn.Linear(8, 4)


def _batch(batch_size, device):
    if in_a_trial() and is_first(f"begun-{os.getpid()}"):
        with (FOLDER / "ran").open("a") as ran:
            ran.write(f"{os.getpid()} {os.getppid()} {batch_size}\n")
    return torch.ones(batch_size, 8, device=device)


def _loss(model, batch):
    held = torch.empty(batch.shape[0] * MIB_PER_SAMPLE * MIB, dtype=torch.uint8, device=batch.device)
    held.zero_()
    return model(batch).sum()


def _workload(fault=None, **parts):
    """The healthy workload, or one whose loss meets a fault in every real step."""

    def loss(model, batch):
        if fault is not None and in_a_trial():
            fault(batch)
        return _loss(model, batch)

    usual = {"build_model": _model, "make_batch": _batch, "loss": loss, "optimizer": "sgd"}
    return Workload(**{**usual, **parts})


def _kill(process_id):
    os.kill(process_id, signal.SIGKILL)
    threading.Event().wait()


def _hang():
    """Hangs with a process of its own, and says which they are; where `hanging` is a pipe, to its reader."""
    helper = subprocess.Popen(["sleep", "3600"])
    (FOLDER / "hanging").write_text(f"{os.getpid()} {helper.pid}\n")
    threading.Event().wait()


def healthy():
    return _workload()


def starving():
    """Needs more than is there, whatever the batch."""
    return _workload(lambda batch: torch.ones(2**38))


def killed_once():
    return _workload(lambda batch: _kill(os.getpid()) if is_first("killed") else None)


def killed():
    return _workload(lambda batch: _kill(os.getpid()))


def worker_killed():
    return _workload(lambda batch: _kill(os.getppid()))


def hangs():
    return _workload(lambda batch: _hang())


def hangs_at_its_second_trial():
    """Its first trial passes; the next one hangs, once."""

    def fault(batch):
        trials = (FOLDER / "ran").read_text().splitlines()
        if len(trials) == 2 and is_first("hung"):
            _hang()

    return _workload(fault)


def hangs_once():
    return _workload(lambda batch: _hang() if is_first("hung") else None)


def leaks():
    """Loses shared memory, which the kernel's limit on private memory does not count, until it is stopped."""
    lost = []

    def fault(batch):
        while len(lost) * 16 * MIB < LEAK_LIMIT_BYTES:
            pages = mmap.mmap(-1, 16 * MIB)
            pages.write(bytes(len(pages)))
            lost.append(pages)
        threading.Event().wait()

    return _workload(fault)


def mistaken():
    def fault(batch):
        raise LookupError("no such layer")

    return _workload(fault)


def vacuous():
    def step(model, optimizer, batch):
        if in_a_trial():
            return
        optimizer.zero_grad()
        _loss(model, batch).backward()
        optimizer.step()

    return _workload(step=step)


def lies_about_its_batch():
    def at_most_two(batch_size, device):
        batch = _batch(batch_size, device)
        return batch[:2] if in_a_trial() else batch

    return _workload(make_batch=at_most_two)


def even_sizes_need_more():
    """In real trials only: no prediction warns of it."""

    def loss(model, batch):
        extra = torch.zeros(128 * MIB if in_a_trial() and len(batch) % 2 == 0 else 0, dtype=torch.uint8)
        return _loss(model, batch) + len(extra) * 0

    return _workload(loss=loss)
