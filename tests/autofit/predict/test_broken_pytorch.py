"""A PyTorch that is not usable as it is installed is told in one sentence."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def test_a_broken_build_of_pytorch_is_told_in_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    broken = "raise OSError('libtorch_cpu.so: cannot open shared object file')"
    (tmp_path / "torch" / "__init__.py").write_text(broken, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = (
        "PyTorch cannot be imported (OSError: libtorch_cpu.so: cannot open shared object file): install "
        "torch into this environment"
    )
    assert _asked_in_a_process() == said


def test_two_pytorch_on_the_path_are_told_in_one_sentence(tmp_path, monkeypatch):
    about = tmp_path / "torch-2.8.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0\n", encoding="utf-8")
    imported = importlib.metadata.version("torch")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = (
        f"two PyTorch are on Python's path, 2.8.0 by its metadata and {imported} by `import torch`: remove "
        "one of them"
    )
    assert _asked_in_a_process() == said


def _asked_in_a_process() -> str:
    """Error of `autofit estimate` in a process that reads the variables of this one's environment."""
    command = [sys.executable, "-m", "autofit.cli", "estimate", "--model", "davenet", "--batch-size", "2"]
    done = subprocess.run([*command, "--quiet"], capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    return done.stderr.removeprefix("error: ").strip()
