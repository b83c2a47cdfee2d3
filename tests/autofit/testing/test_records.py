"""Peaks of marked tests in the lock, and in pytest's output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autofit.locks.lock_file import Lock, LockedConfiguration, LockedPeak, read_lock, write_lock
from autofit.testing.records import summary_lines, update_lock
from tests.autofit.testing.projects import PLUGIN, alone  # noqa: F401 - a fixture

GIB = 1024**3
pytest_plugins = "pytester"


def found(**changes: Any) -> dict[str, Any]:
    """Data of a test that fits, as its report carries them."""
    peak = {
        "torch": "2.13.0", "gpu": "t4", "likely_bytes": 2 * GIB, "high_bytes": 3 * GIB,
        "allocated_bytes": GIB, "parameters_bytes": 1, "activations_bytes": 2, "largest_batch": None,
        "step_seconds": None, "other_bytes": 0,
        "holders": [{"module": "net", "line": "a.py:1", "code": "x", "num_bytes": GIB}],
    }  # fmt: skip
    return {
        "peak": peak,
        "card": "t4",
        "batch_size": 8,
        "fits": True,
        "usable_bytes": 14 * GIB,
        "recorded_bytes": None,
        "change": "new",
        **changes,
    }


@pytest.fixture
def config(pytester: pytest.Pytester, alone: None) -> pytest.Config:  # noqa: F811 - the fixture
    return pytester.parseconfig(*PLUGIN)


def lock_of(config: pytest.Config) -> Path:
    return config.rootpath / "memory.lock.toml"


def test_the_lock_has_the_peaks_of_tests_and_keeps_what_else_it_had(config: pytest.Config) -> None:
    other = LockedConfiguration(name="davenet", arguments=("--model", "davenet"))
    former = LockedConfiguration(name="test_a.py::test_it").with_peak(
        LockedPeak(
            torch="2.13.0", gpu="h200", likely_bytes=1, high_bytes=1, allocated_bytes=1, parameters_bytes=1,
            activations_bytes=0,
        )
    )  # fmt: skip
    path = lock_of(config)
    write_lock(path, Lock().with_configuration(other).with_configuration(former))
    assert update_lock(config, {"test_a.py::test_it": found(), "test_a.py::big": found(fits=False)}) == ""
    read = read_lock(path).configurations
    assert set(read) == {"davenet", "test_a.py::test_it"}
    assert read["davenet"] == other
    assert read["test_a.py::test_it"].arguments == ()
    assert [peak.gpu for peak in read["test_a.py::test_it"].peaks] == ["h200", "t4"]
    written = read["test_a.py::test_it"].peak("2.13.0", "t4")
    assert written is not None
    assert written.holders[0].num_bytes == GIB


def test_a_lock_that_is_none_stays_as_it_is(config: pytest.Config) -> None:
    path = lock_of(config)
    path.write_text("colour = 'red'\n", encoding="utf-8")
    problem = update_lock(config, {"test_a.py::test_it": found()})
    assert "memory.lock.toml is no lock" in problem
    assert path.read_text(encoding="utf-8") == "colour = 'red'\n"


def test_a_lock_that_would_be_the_same_is_not_written(config: pytest.Config) -> None:
    update_lock(config, {"test_a.py::test_it": found()})
    path = lock_of(config)
    path.chmod(0o444)
    before = path.stat().st_mtime_ns, path.stat().st_ino
    assert update_lock(config, {"test_a.py::test_it": found()}) == ""
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


@pytest.mark.parametrize(
    ("changes", "updates", "said"),
    [
        ({}, False, "not recorded"),
        ({}, True, "recorded"),
        ({"change": "same", "recorded_bytes": 2 * GIB}, False, "as recorded"),
        ({"change": "grew", "recorded_bytes": GIB}, False, "+1.00 GiB"),
        ({"change": "shrank", "recorded_bytes": 3 * GIB}, False, "-1.00 GiB"),
        ({"fits": False}, True, "does not fit for sure"),
    ],
)
def test_a_line_says_what_became_of_a_test(changes: dict[str, Any], updates: bool, said: str) -> None:
    (line,) = summary_lines({"test_a.py::test_it": found(**changes)}, updates=updates)
    assert line.startswith("test_a.py::test_it     2.00 GiB likely,    3.00 GiB at most of 14.00 GiB on t4")
    assert line.endswith(f", batch 8: {said}")
