"""Installed size: the wheel holds plotly.js in place of the package plotly, and little comes beside it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.install.environments import ROOT, Environment, environment, project
from tests.licences import required

pytestmark = pytest.mark.process

MEGABYTE = 1000**2
MOST_INSTALLED = 60 * MEGABYTE
MOST_IN_THE_WHEEL = 8 * MEGABYTE
BLOCK = 4096  # of a file system: a file takes whole ones
OF_USERS = ("torch", "ray[default]", "optuna")  # what a user has, or asks for
SCRIPT, LICENCE = "autofit/report/html/plotly.min.js", "autofit/report/html/plotly.LICENSE.txt"
# The command line where the package plotly cannot be imported.
WITHOUT_PLOTLY = (
    "import sys; sys.modules['plotly'] = None; from autofit.cli.app import main; sys.exit(main(sys.argv[1:]))"
)
REPORT = ("profile", "davenet", "--batch-size", "2", "--quiet", "--report", "page.html")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp("wheel") / "environment", "wheel")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path / "state"))
    return project(tmp_path)


def test_a_wheel_made_from_the_sdist_holds_plotly_js_and_its_licence(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size <= MOST_IN_THE_WHEEL
    with zipfile.ZipFile(wheel) as archive:
        assert "plotly.js v" in archive.read(SCRIPT)[:100].decode()
        licence = archive.read(LICENCE).decode()
    assert licence.startswith("MIT License")
    assert "Plotly" in licence


def test_a_report_is_written_without_the_package_plotly(installed: Environment, folder: Path):
    done = installed.run("python", "-c", WITHOUT_PLOTLY, *REPORT, cwd=folder)
    assert done.returncode == 0, done.stderr
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert page.count("plotly.js v") == 1
    assert "Plotly.react" in page


def test_where_there_is_no_plotly_js_a_report_is_refused_before_any_work(folder: Path, tmp_path: Path):
    editable = environment(tmp_path / "environment", "editable")
    done = editable.run("python", "-c", WITHOUT_PLOTLY, *REPORT, cwd=folder)
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr == (
        "error: a report needs plotly.js, which is not installed here: pip install plotly\n"
    )
    assert not (tmp_path / "state").exists()
    assert editable.run("autofit", *REPORT, cwd=folder).returncode == 0


def test_at_most_60_megabytes_come_beside_torch_ray_and_optuna(installed: Environment):
    (found,) = importlib.metadata.distributions(name="autofit-gpu", path=[str(installed.site)])
    needs = [need for need in found.requires or () if "extra ==" not in need]
    theirs = {name for root in OF_USERS for name in required(root)}
    ours = {name for need in needs for name in required(need)} - theirs
    assert {"rich", "nvidia-ml-py", "psutil"} <= ours
    assert "plotly" not in ours
    sizes = {name: num_bytes(importlib.metadata.files(name) or ()) for name in ours}
    sizes["autofit-gpu"] = num_bytes(found.files or ())
    assert sizes["autofit-gpu"] > 5 * MEGABYTE  # plotly.js alone
    assert sum(sizes.values()) <= MOST_INSTALLED, sizes


def num_bytes(files: Iterable[importlib.metadata.PackagePath]) -> int:
    """Bytes that files take on a disk by their RECORD, with bytecode as large as each module."""
    kept = [file for file in files if file.suffix != ".pyc"]
    return sum(-(-(file.size or 0) // BLOCK) * BLOCK * (2 if file.suffix == ".py" else 1) for file in kept)
