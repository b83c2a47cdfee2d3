"""A thousand hostile inputs end as they may, and those that once did not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autofit.errors import AutofitError
from tests.fuzz.parsers import PARSERS

CASES = sorted(Path(__file__).with_name("cases").glob("*.*"))


def _runner() -> ModuleType:
    """The program for long runs, as a module."""
    spec = importlib.util.spec_from_file_location("fuzz_run", Path(__file__).with_name("run.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["fuzz_run"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")  # of libraries, about what they are given
def test_a_thousand_inputs_end_as_they_may(tmp_path: Path) -> None:
    fuzz = _runner().run(1000, seed=11, folder=tmp_path)
    assert [f"{fault.kind} {fault.seed}: {fault.what}" for fault in fuzz.faults] == []
    assert sum(tally.num_inputs for tally in fuzz.tallies.values()) == 1000


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_once_failed_is_refused_in_words(case: Path, tmp_path: Path) -> None:
    parser = PARSERS[case.name.partition("-")[0]]
    try:
        parser.read(case.read_bytes(), tmp_path)
    except AutofitError as error:
        assert "\n" not in error.message
