"""The table of releases: a cell says whether another release predicts the same."""

from __future__ import annotations

import pytest

from tests.versions.cases import all_cases
from tests.versions.installations import RELEASES
from tests.versions.table import cell
from tests.versions.traced import traced

HERE = {"digest": "a", "allocated_bytes": 90, "reserved_bytes": 100}


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (HERE, "equal"),
        ({**HERE, "digest": "b"}, "as much"),
        ({**HERE, "digest": "b", "reserved_bytes": 102}, "+2.00%"),
        ({"error": "no such operator"}, "no such operator"),
    ],
)
def test_a_cell_compares_events_then_peaks(there, words):
    assert cell(HERE, there) == words


def test_cases_have_names_of_their_own_and_can_be_described(tmp_path):
    cases = all_cases(tmp_path)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        case.spec()


def test_a_case_is_traced_with_the_release_that_runs(tmp_path):
    case = next(each for each in all_cases(tmp_path) if each.name == "davenet-audio bf16 infer")
    found = traced(case)
    assert found["reserved_bytes"] >= found["allocated_bytes"] > 0


def test_every_tested_release_but_the_one_of_the_tests_is_compared():
    from autofit_workers.spec.versions import SUPPORTED_RELEASES

    assert set(RELEASES) == set(SUPPORTED_RELEASES[1:])
