from __future__ import annotations

import inspect
import json
import pickle

import pytest

from autofit import errors
from autofit.errors import (
    AutofitError,
    BudgetError,
    DispatchError,
    ExitCode,
    StorageError,
    StudyMismatchError,
    UnknownGpuError,
    UnknownModelError,
    UsageError,
    WorkloadFailedError,
    did_you_mean,
)

ALL_ERRORS = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, AutofitError)
]


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (UsageError, 2),
        (UnknownGpuError, 2),
        (UnknownModelError, 2),
        (BudgetError, 2),
        (StudyMismatchError, 2),
        (WorkloadFailedError, 4),
        (StorageError, 5),
        (DispatchError, 5),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(error: type[AutofitError], exit_code: int) -> None:
    assert error("no").exit_code == exit_code


def test_the_tree_in_the_docstring_names_every_error_with_its_exit_code() -> None:
    assert errors.__doc__ is not None
    drawn = {}
    for line in errors.__doc__.splitlines():
        words = line.lstrip(" │├└─").split()
        if words and words[0].endswith("Error") and len(words) > 1:
            drawn[words[0]] = int(words[1])
    assert drawn == {error.__name__: error.exit_code for error in ALL_ERRORS if error is not AutofitError}


def test_kinds_are_distinct_words() -> None:
    kinds = [error.kind for error in ALL_ERRORS if "kind" in vars(error)]  # or it is that of its base
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_an_error_becomes_a_document_of_schema_error_1(error: type[AutofitError]) -> None:
    one = error("say what to do")
    assert json.loads(one.to_json()) == {
        "schema": "autofit.error/1",
        "kind": one.kind,
        "message": "say what to do",
        "exit_code": int(error.exit_code),
    }


def test_a_workload_s_failure_keeps_its_traceback_and_kind_across_processes() -> None:
    error = WorkloadFailedError("boom", kind="data-dependent", traceback="Traceback …")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.kind, copy.traceback) == ("boom", "data-dependent", "Traceback …")
    assert json.loads(copy.to_json())["kind"] == "data-dependent"
    assert WorkloadFailedError("other").kind == "workload"


def test_exit_codes_are_those_of_the_command_line_s_contract() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "FOUND": 0,
        "INTERNAL": 1,
        "USAGE": 2,
        "NOTHING_FITS": 3,
        "WORKLOAD_FAILED": 4,
        "INFRASTRUCTURE": 5,
        "UNSURE": 6,
        "GREW": 7,
        "INTERRUPTED": 130,
        "READER_GONE": 141,
    }


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet", " Did you mean resnet50?"),
        ("davnet", " Did you mean davenet?"),
        ("DAVENET", " Did you mean davenet, davenet-audio or davenet-image?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_near_names_are_offered(name: str, hint: str) -> None:
    assert did_you_mean(name, ["resnet50", "davenet", "davenet-audio", "davenet-image"]) == hint
