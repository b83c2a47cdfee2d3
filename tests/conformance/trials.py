"""Workloads that end in every way that a dispatcher has to tell; a trial's process loads them by path.

Each test copies this file into a folder of its own, and what a workload leaves behind is there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import torch

from autofit_workers.workload.workload import Workload

FOLDER = Path(__file__).parent


def _model():
    return torch.nn.Linear(8, 4)


def _batch(batch_size, device):
    return torch.ones(batch_size, 8, device=device)


def _loss(model, batch):
    return model(batch).sum()


def _workload(loss=_loss):
    return Workload(build_model=_model, make_batch=_batch, loss=loss, optimizer="sgd")


def fits():
    return _workload()


def runs_out_of_memory():
    return _workload(lambda model, batch: model(batch).sum() + torch.ones(2**40).sum())


def hangs():
    """Says when it hangs, and which processes then belong to it."""

    def loss(model, batch):
        helper = subprocess.Popen(["sleep", "3600"])
        (FOLDER / "hanging").write_text(f"{os.getpid()} {helper.pid}\n")
        threading.Event().wait()

    return _workload(loss)


def is_killed():
    return _workload(lambda model, batch: os.kill(os.getpid(), signal.SIGKILL))


def is_mistaken():
    def loss(model, batch):
        raise LookupError("no such layer")

    return _workload(loss)


def loses_its_supervisor():
    def loss(model, batch):
        with (FOLDER / "orphans").open("a") as orphans:
            orphans.write(f"{os.getpid()} {os.getppid()}\n")
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait()

    return _workload(loss)
