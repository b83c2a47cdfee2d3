"""What loading the plugin costs in the pytest of everybody who has autofit installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from autofit_workers.spec.documents import parse_toml
from tests.autofit.testing.projects import PLUGIN, alone  # noqa: F401 - a fixture

pytest_plugins = "pytester"
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("alone")]
ROOT = Path(__file__).parents[3]

# Ours, and difflib, by which errors suggest names.
LOADED = {
    "autofit", "autofit.errors", "autofit.testing", "autofit.testing.names",
    "autofit.testing.plugin", "autofit_workers",
    "autofit_workers.installation", "autofit_workers.process", "autofit_workers.process.operating_system",
    "autofit_workers.spec", "autofit_workers.spec.errors", "autofit_workers.spec.shown", "difflib",
}  # fmt: skip
ADDED = """
import json, sys
import pytest, _pytest.assertion.rewrite, _pytest.terminal, _pytest.junitxml, _pytest.config.argparsing
before = set(sys.modules)
import autofit.testing.plugin
print(json.dumps(sorted(set(sys.modules) - before)))
"""
CONFTEST = """
import sys

def pytest_unconfigure():
    names = ("torch", "optuna", "ray", "autofit.api", "autofit.testing.marked", "autofit.testing.forked")
    print("LOADED:", [name for name in names if name in sys.modules])
"""


def test_loading_the_plugin_adds_a_dozen_light_modules() -> None:
    run = subprocess.run([sys.executable, "-c", ADDED], capture_output=True, text=True, check=True)
    added = set(json.loads(run.stdout))
    foreign = {name for name in added if not name.startswith("autofit")}
    assert added <= LOADED, added - LOADED
    assert foreign <= {"difflib"}


def test_a_run_without_such_tests_loads_no_more(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_plain():\n    pass\n")
    result = pytester.runpytest_subprocess(*PLUGIN, "-q", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["LOADED: *[]*"])


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = parse_toml((ROOT / "pyproject.toml").read_bytes())["project"]
    assert project["entry-points"]["pytest11"] == {"autofit": PLUGIN[1]}


def test_without_torch_such_tests_are_skipped_with_a_reason(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import sys\n\nsys.modules['torch'] = None\n")
    pytester.makepyfile(
        "import pytest\n@pytest.mark.memory(gpu='t4', batch_size=8)\n"
        "def test_marked():\n    return 'davenet'\n"
        "def test_block(peak_memory):\n    pass\n"
        "def test_plain():\n    pass\n"
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "-rs", "--strict-markers")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED * test_without_torch*.py:*: autofit predicts with PyTorch, which is not installed here: "
            "pip install torch"
        ]
    )


def test_with_another_pytorch_such_tests_are_skipped_with_a_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = pytester.mkdir("other")
    (other / "torch-99.0.dist-info").mkdir()
    (other / "torch-99.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 99.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(other))
    pytester.makepyfile(
        "import pytest\n@pytest.mark.memory(gpu='t4', batch_size=8)\n"
        "def test_marked():\n    return 'davenet'\n"
        "def test_block(peak_memory):\n    pass\n"
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*two PyTorch are on Python's path, 99.0 by its metadata*"])
