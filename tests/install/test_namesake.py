"""Beside the other distribution that writes `autofit/`, autofit says in one sentence what is wrong."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from tests.install.environments import Environment, environment

pytestmark = pytest.mark.process

CURE = "pip uninstall autofit, then pip install --force-reinstall --no-deps autofit-gpu"


@pytest.fixture
def wheel(tmp_path: Path) -> Environment:
    return environment(tmp_path / "environment", "wheel")


@pytest.fixture
def editable(tmp_path: Path) -> Environment:
    return environment(tmp_path / "environment", "editable")


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A wheel of the name and the folder of the other project."""
    files = {
        "autofit/__init__.py": "__version__ = '2026.4.1'\n",
        "autofit/exc.py": "",
        "autofit-2026.4.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: autofit\nVersion: 2026.4.1\n",
        "autofit-2026.4.1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "autofit-2026.4.1.dist-info/RECORD"
    rows = [f"{name},sha256={_digest(text)},{len(text)}" for name, text in files.items()]
    path = tmp_path / "autofit-2026.4.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, record: "\n".join([*rows, f"{record},,"]) + "\n"}.items():
            archive.writestr(name, text)
    return str(path)


def test_a_whole_installation_says_nothing(wheel: Environment, tmp_path: Path):
    done = wheel.run("autofit", "--version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = wheel.run("python", "-W", "error", "-c", "import autofit", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_files_that_the_other_overwrote_are_named(wheel: Environment, other: str, tmp_path: Path):
    wheel.pip("install", "-q", "--no-index", "--no-deps", other)
    done = wheel.run("autofit", "tune", "davenet", "--gpu-mem", "16G", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == (
        f"error: autofit/__init__.py in {wheel.site} is not as autofit-gpu installed it; the distribution "
        f"autofit 2026.4.1 has files of the same names: {CURE}\n"
    )
    told = wheel.run("autofit", "tune", "davenet", "--gpu-mem", "16G", "--json", cwd=tmp_path)
    document = json.loads(told.stdout)
    assert told.returncode == document["exit_code"] == 5
    assert document["schema"] == "autofit.error/1"
    assert f"error: {document['message']}\n" == done.stderr


def test_an_import_says_it_where_ours_came_last(wheel: Environment, other: str, tmp_path: Path):
    wheel.pip("install", "-q", "--no-index", "--no-deps", other)
    ours = environment(wheel.folder, "wheel")
    done = ours.run("python", "-c", "import autofit; print(autofit.tune.__name__)", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "tune\n")
    assert "the distribution autofit 2026.4.1 is installed beside autofit-gpu" in done.stderr
    assert CURE in done.stderr
    done = ours.run("autofit", "--version", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("autofit 2026.4.1") == 1


def test_what_the_others_removal_took_along_is_named(wheel: Environment, other: str, tmp_path: Path):
    wheel.pip("install", "-q", "--no-index", "--no-deps", other)
    wheel.pip("uninstall", "-q", "-y", "autofit")
    done = wheel.run("autofit", "models", cwd=tmp_path)
    assert done.returncode == 5
    assert done.stderr == (
        f"error: autofit/__init__.py in {wheel.site} is not as autofit-gpu installed it: pip install "
        "--force-reinstall --no-deps autofit-gpu\n"
    )


def test_the_other_in_front_of_an_editable_installation_is_named(
    editable: Environment, other: str, tmp_path: Path
):
    editable.pip("install", "-q", "--no-index", "--no-deps", other)
    done = editable.run("autofit", "models", cwd=tmp_path)
    if done.returncode == 0:  # ours is found first: then nothing is wrong but the name
        assert "autofit 2026.4.1 is installed beside autofit-gpu" in done.stderr
        return
    assert done.returncode == 5
    assert str(editable.site / "autofit") in done.stderr
    assert CURE in done.stderr


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
