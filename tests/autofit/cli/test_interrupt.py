"""Ctrl-C and SIGTERM, as real signals to a real process."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from typing import BinaryIO

import psutil
import pytest

from autofit.cli.interruption import interruptible, print_document
from tests.conformance.dispatcher import ROOT, marked_processes, survivors
from tests.conformance.searches import Search, finished
from tests.marks import MARK

WORKLOAD = """
import threading
import torch
from autofit_workers.workload import Workload


def stuck(batch_size, device):
    with open("/proc/self/comm", "w") as name:  # which can be seen from outside of its boundary
        name.write("is-stuck")
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
# The console entry, with a search that takes no interruption for an answer.
STUBBORN = """
import sys, threading
from autofit.cli import main
from autofit.cli.backend import Backend


def tune(settings, workload, emit):
    print("here", file=sys.stderr, flush=True)
    while True:
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            pass


sys.exit(main(backend=Backend(tune=tune)))
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.process
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        (["tune", "--gpu-mem", "2G"], signal.SIGINT),
        (["tune", "--gpu-mem", "2G"], signal.SIGTERM),
        (["estimate", "--batch-size", "4"], signal.SIGTERM),
        (["check", "--batch-size", "4", "--gpu-mem", "2G"], signal.SIGTERM),
    ],
)
def test_ctrl_c_or_a_batch_systems_signal_during_a_prediction_ends_the_command_with_130(
    tmp_path: pathlib.Path, arguments: list[str], sent: signal.Signals
):
    file = tmp_path / "stuck.py"
    file.write_text(WORKLOAD)
    command = [sys.executable, "-c", MAIN, *arguments, "--model", f"{file}:net", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _wait_for(process.pid, "is-stuck")
        process.send_signal(sent)
        out, err = process.communicate()
    assert process.returncode == 130
    assert json.loads(out)["kind"] == "interrupted"
    assert "Traceback" not in err


def _wait_for(parent: int, name: str) -> None:
    """Waits until a process below another one has given itself that name."""
    while True:
        for each in psutil.Process(parent).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if each.name() == name:
                    return
        time.sleep(0.05)


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sent", SIGNALS)
def test_a_search_on_ray_ends_trials_and_ray_and_says_what_it_kept(
    tmp_path: pathlib.Path, mark: str, sent: signal.Signals
):
    search = Search(tmp_path, "hangs_at_its_second_trial")
    search.will_hang()
    coordinator = search.start(environment={MARK: f"{mark}-{sent}"})
    trial = [psutil.Process(pid) for pid in search.wait_until_it_hangs()]
    coordinator.send_signal(sent)
    coordinator.send_signal(signal.SIGTERM)  # more of them change nothing
    end = finished(coordinator)
    assert (end.code, end.document["kind"]) == (130, "interrupted")
    assert "kept in study mine: the same command continues it" in end.document["message"]
    assert "Traceback" not in end.err
    assert survivors([*trial, *marked_processes(f"{mark}-{sent}")]) == []


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sent", SIGNALS)
def test_while_ray_starts_a_signal_is_heard_too(tmp_path: pathlib.Path, mark: str, sent: signal.Signals):
    search = Search(tmp_path, "healthy")
    mark = f"{mark}-{sent}"
    coordinator = search.start(environment={MARK: mark})
    while not any(process.name() == "gcs_server" for process in marked_processes(mark)):
        assert coordinator.poll() is None
    coordinator.send_signal(sent)
    end = finished(coordinator)
    assert (end.code, end.document["kind"]) == (130, "interrupted")
    assert survivors(marked_processes(mark)) == []


@pytest.mark.process
@pytest.mark.timeout(120)
def test_a_command_that_an_exception_does_not_end_is_ended_nevertheless():
    command = [
        sys.executable,
        "-P",
        "-c",
        STUBBORN,
        "tune",
        "--model",
        "davenet",
        "--gpu-mem",
        "2G",
        "--json",
    ]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr.readline() == "here\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 130
    assert json.loads(out)["kind"] == "interrupted"
    assert "Traceback" not in err


def test_a_document_is_written_whole_whatever_comes_meanwhile():
    class Interrupted(io.StringIO):
        def write(self, text: str) -> int:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().write(text)

    handler = signal.getsignal(signal.SIGTERM)
    out = Interrupted()
    with interruptible(as_json=True, to_the_end=False) as interruption:
        with pytest.raises(KeyboardInterrupt), redirect_stdout(out):
            print_document("{}")
        assert interruption.is_answered
        with redirect_stdout(out):
            assert interruption.end(as_json=True) == 130  # with the one document
    assert out.getvalue() == "{}\n"
    assert signal.getsignal(signal.SIGTERM) is handler


@contextlib.contextmanager
def _printing_cards(**environment: str) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """A command in the midst of a document that is longer than its pipe holds, and the pipe's other end."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(reader, "rb") as answers:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autofit.cli", "gpus", "--json"],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=writer,
            stderr=subprocess.PIPE,
        )
        os.close(writer)
        with process:
            assert os.read(reader, 1) == b"{"
            yield process, answers


@pytest.mark.process
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_signal_while_a_document_is_read_slowly_cuts_nothing_off(unbuffered: str):
    with _printing_cards(PYTHONUNBUFFERED=unbuffered) as (process, answers):
        process.send_signal(signal.SIGTERM)
        assert json.loads(b"{" + answers.read())["schema"] == "autofit.gpus/1"
        assert process.wait() == 130


@pytest.mark.process
@pytest.mark.timeout(60)
def test_a_reader_that_stops_reading_keeps_no_command_alive():
    with _printing_cards() as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 130


def test_a_command_that_ends_by_itself_leaves_the_signals_as_they_were():
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with interruptible(as_json=False, to_the_end=False) as interruption:
        assert [signal.getsignal(number) for number in SIGNALS] != handlers
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    assert not interruption.is_wanted
