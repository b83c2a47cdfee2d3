"""Tests with the mark `memory`, from the first run to the growth that they find."""

from __future__ import annotations

import pytest

from autofit.locks.lock_file import read_lock
from tests.autofit.testing.projects import PLUGIN, WORKLOAD, alone  # noqa: F401 - a fixture

pytest_plugins = "pytester"
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("alone", "warm_tracer")]

TESTS = """
from net import *

@pytest.fixture
def workload():
    return made()

@pytest.mark.memory(gpu="t4", batch_size=16384)
class TestNet:
    def test_given(self, workload):
        return workload

    @pytest.mark.memory(batch_size=64)
    def test_small(self):
        return made()

@pytest.mark.memory(gpu="t4", batch_size=64, max_peak="1GiB")
def test_within_a_limit():
    return "net.py:made"
"""
KEEPS = ("x = torch.tanh(layer(x))", "x = torch.tanh(layer(x)).clone()")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(net=WORKLOAD, test_net=TESTS)
    return pytester


def change(project: pytest.Pytester, old: str, new: str) -> None:
    file = project.path / "net.py"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", *arguments)


def test_a_peak_is_recorded_kept_and_its_growth_is_shown_by_line(project: pytest.Pytester) -> None:
    # Workers report what they predict, and the lock is written once.
    recorded = run(project, "--memory-update", "-W", "error", "-p", "xdist.plugin", "-n", "2")
    recorded.assert_outcomes(passed=3)
    lines = [line.split()[0] for line in recorded.outlines if line.endswith(": recorded")]
    assert lines == sorted(read_lock(project.path / "memory.lock.toml").configurations)
    assert lines == [
        "test_net.py::TestNet::test_given",
        "test_net.py::TestNet::test_small",
        "test_net.py::test_within_a_limit",
    ]
    same = run(project)
    same.assert_outcomes(passed=3)
    same.stdout.fnmatch_lines(
        [
            "*= predicted GPU memory =*",
            "test_net.py::TestNet::test_given *GiB on t4, batch 16384: as recorded",
        ]
    )

    change(project, *KEEPS)
    grown = run(project)
    grown.assert_outcomes(failed=1, passed=2)
    grown.stdout.fnmatch_lines(
        [
            "memory of batch 16384 grew by * % on t4 with PyTorch *, where 2% are allowed",
            "*grew most:",
            "*+*MiB  net.py:15  *x = torch.tanh(layer(x)).clone()",
            "Next: undo the growth, or record it if it is meant: pytest --memory-update",
        ]
    )


def test_what_does_not_fit_fails_whatever_is_recorded(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        net=WORKLOAD,
        test_fit="from net import *\n\n"
        "@pytest.mark.memory(gpu='t4', batch_size=2**23)\ndef test_huge():\n    return made()\n\n"
        "@pytest.mark.memory(gpu='t4', batch_size=16384, max_peak='64MiB')\n"
        "def test_limit():\n    return made()\n",
    )
    result = run(pytester, "--memory-update")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "batch 8388608 does not fit t4: the peak is * GiB likely, * GiB at most, and *usable there",
            "largest:",
            "*GiB  net.py:15  *",
            "the peak of batch 16384 on t4 is * MiB likely, * MiB at most, and max_peak is 64.00 MiB",
        ]
    )
    lock = read_lock(pytester.path / "memory.lock.toml").configurations
    assert set(lock) == {"test_fit.py::test_limit"}


def test_a_workload_of_a_module_that_nobody_else_can_import_is_sent_along(pytester: pytest.Pytester) -> None:
    mark = "@pytest.mark.memory(gpu='t4', batch_size=8{})\n"
    folder = pytester.mkdir("a-folder")
    (folder / "test_it.py").write_text(
        f"{WORKLOAD}\n{mark.format(', max_peak=2**30')}def test_it():\n    return made()\n"
        f"{mark.format('')}def test_new():\n    return made()\n",
        encoding="utf-8",
    )
    pytester.makepyfile(test_it="def test_other():\n    pass\n")
    result = run(pytester, "--import-mode=importlib", "a-folder/test_it.py")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "no peak of a-folder/test_it.py::test_new is recorded for t4 with PyTorch * (it is * MiB now): "
            "run pytest --memory-update to record it, or give the mark a limit such as max_peak='10GiB'",
            "a-folder/test_it.py::test_it  * batch 8: not recorded",
        ]
    )
    assert not (pytester.path / "memory.lock.toml").exists()
