"""Ctrl-C and SIGTERM, as real signals to a real process."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

WORKLOAD = """
import os, threading
import torch
from workers.workload import Workload


def stuck(batch_size, device):
    with open(os.environ["STUCK_FIFO"], "w") as fifo:
        fifo.write("here")
    threading.Event().wait()


net = Workload(
    build_model=lambda: torch.nn.Linear(2, 2),
    make_batch=stuck,
    loss=lambda model, batch: batch,
    optimizer="sgd",
)
"""
# A process started in the background of a script ignores SIGINT, and so do its children.
MAIN = """
import signal, sys
from autofit.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.mark.process
@pytest.mark.timeout(120)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_or_a_batch_systems_signal_during_a_trial_ends_the_command_with_130(
    tmp_path: pathlib.Path, sent: signal.Signals
):
    file, fifo = tmp_path / "stuck.py", tmp_path / "fifo"
    file.write_text(WORKLOAD)
    os.mkfifo(fifo)
    command = [sys.executable, "-c", MAIN, "tune", "--model", f"{file}:net", "--gpu-mem", "2G", "--json"]
    environment = {**os.environ, "STUCK_FIFO": str(fifo)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        with fifo.open() as reader:  # opens once the trial's process writes
            assert reader.read() == "here"
        process.send_signal(sent)
        out, err = process.communicate()
    assert process.returncode == 130
    assert json.loads(out)["kind"] == "interrupted"
    assert "Traceback" not in err
