"""The table of releases: a cell says whether another release predicts the same."""

from __future__ import annotations

import pytest

from tests.versions.cases import all_cases
from tests.versions.installations import RELEASES
from tests.versions.table import REASONS, Outcome, compared, details, reason_of
from tests.versions.traced import traced

HERE = {"digest": "a", "allocated_bytes": 90, "reserved_bytes": 100}


FOLLOWED = {"digest": "b", "allocated_bytes": 80, "reserved_bytes": 90}


@pytest.mark.parametrize(
    ("there", "outcome"),
    [
        (HERE, Outcome.DIFFERS),  # following changes what was equal
        (FOLLOWED, Outcome.FOLLOWED),
        ({**FOLLOWED, "digest": "c"}, Outcome.AS_MUCH),
        ({**HERE, "digest": "c", "reserved_bytes": 102}, Outcome.DIFFERS),
        ({"error": "no such operator"}, Outcome.REFUSED),
    ],
)
def test_a_cell_compares_events_then_what_is_followed_then_peaks(there, outcome):
    assert compared(HERE, FOLLOWED, there) == outcome


def test_what_is_equal_as_it_is_and_as_followed_is_equal():
    assert compared(HERE, HERE, HERE) == Outcome.EQUAL
    assert compared(HERE, None, HERE) == Outcome.EQUAL


def test_the_same_refusal_is_equal_and_another_one_is_not():
    refused = {"error": "no such model"}
    assert compared(refused, None, refused) == Outcome.EQUAL
    assert compared(refused, None, {"error": "no such operator"}) == Outcome.REFUSED
    assert compared(refused, None, HERE) == Outcome.DIFFERS


def test_what_differs_is_told_with_sizes_or_with_the_error():
    assert details(HERE, {**HERE, "reserved_bytes": 102}) == "reserved_bytes +2.00%, allocated_bytes +0.00%"
    assert details(HERE, {"error": "no such operator"}) == "no such operator"
    assert details({"error": "no such model"}, HERE) == "here: no such model"


def test_every_reason_is_of_cases_and_releases_that_are_compared(tmp_path):
    names = [case.name for case in all_cases(tmp_path)]
    for (start, labels), why in REASONS.items():
        assert {label.partition(" ")[0] for label in labels} <= set(RELEASES)
        assert any(reason_of(name, labels[0]) == why for name in names), start


def test_cases_have_names_of_their_own_and_can_be_described(tmp_path):
    cases = all_cases(tmp_path)
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        case.spec()


def test_a_case_is_traced_with_the_release_that_runs(tmp_path):
    case = next(each for each in all_cases(tmp_path) if each.name == "davenet-audio bf16 infer")
    found = traced(case, None)
    assert found["reserved_bytes"] >= found["allocated_bytes"] > 0


def test_every_tested_release_but_the_one_of_the_tests_is_compared():
    from autofit_workers.spec.versions import SUPPORTED_RELEASES

    assert set(RELEASES) == set(SUPPORTED_RELEASES[1:])
