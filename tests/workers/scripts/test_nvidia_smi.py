"""A script that starts `nvidia-smi` on a machine without it is told of the fake GPUs."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from autofit_workers.tracing.scripts import nvidia_smi

GIB = 1024**3


def test_a_query_has_a_row_for_each_gpu():
    words = ["--query-gpu=index,name,memory.total,temperature.gpu", "--format=csv,noheader"]
    assert nvidia_smi.answer(words, "H100", 80 * GIB, 2) == (
        "0, H100, 81920 MiB, [N/A]\n1, H100, 81920 MiB, [N/A]"
    )


def test_a_query_with_a_header_and_without_units():
    words = ["--query-gpu", "memory.used, memory.free", "--format", "csv,nounits"]
    assert nvidia_smi.answer(words, "H100", 80 * GIB, 1) == "memory.used, memory.free\n0, 81920"


def test_without_a_query_the_gpus_are_listed():
    assert nvidia_smi.answer([], "H100", 80 * GIB, 2) == "GPU 0: H100\nGPU 1: H100"


@pytest.fixture
def started(monkeypatch):
    """Installs the answers, and returns how commands are then started."""
    starts: list[tuple[Any, dict[str, Any]]] = []

    class Popen:
        def __init__(self, args: Any, **options: Any) -> None:
            starts.append((args, options))

    monkeypatch.setattr(nvidia_smi, "subprocess", SimpleNamespace(Popen=Popen))
    monkeypatch.setattr(nvidia_smi.shutil, "which", lambda _name: None)
    nvidia_smi.install("H100", 80 * GIB, lambda: 1)
    return lambda args, **options: (Popen(args, **options), starts[-1])[1]


@pytest.mark.parametrize("command", [["nvidia-smi"], "nvidia-smi", ["/usr/bin/nvidia-smi", "-L"]])
def test_the_program_is_answered_by_one_that_is_there(started, command):
    args, options = started(command, shell=isinstance(command, str))
    assert args == ["echo", "GPU 0: H100"]
    assert options == {"shell": False}
    assert subprocess.run(args, capture_output=True, text=True, check=True).stdout == "GPU 0: H100\n"


@pytest.mark.parametrize("command", [["git", "status"], "nvidia-smi | grep MiB", "echo nvidia-smi", b"ls"])
def test_other_commands_are_started_as_they_are(started, command):
    assert started(command, shell=True) == (command, {"shell": True})


def test_the_real_program_is_left_alone(monkeypatch):
    popen = SimpleNamespace(__init__="as it was")
    monkeypatch.setattr(nvidia_smi, "subprocess", SimpleNamespace(Popen=popen))
    monkeypatch.setattr(nvidia_smi.shutil, "which", lambda name: f"/usr/bin/{name}")
    nvidia_smi.install("H100", 80 * GIB, lambda: 1)
    assert popen.__init__ == "as it was"
