"""Findings of a check for reviews: on the line that grew, or where the lock has the configuration."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autofit.answers.locks.findings import FINDINGS, findings_of
from autofit.locks.checking import LockCheck
from autofit.locks.growth import Change, Comparison, LineChange, Memory

GIB = 1024**3
SARIF_SCHEMA = os.environ.get("AUTOFIT_SARIF_SCHEMA", "")


def memory(likely: float) -> Memory:
    size = int(likely * GIB)
    return Memory(
        likely_bytes=size, high_bytes=size, allocated_bytes=size, parameters_bytes=0, activations_bytes=size
    )


def line(file: str | None, before: float, after: float, number: int | None = 3) -> LineChange:
    return LineChange(
        module="layers.*",
        file=file,
        line=number if file else None,
        former_line=None,
        code="y = x.float()" if file else "(parameters)",
        before_bytes=int(before * GIB),
        after_bytes=int(after * GIB),
    )


def check_of(*configurations: Comparison) -> LockCheck:
    return LockCheck(file="memory.lock.toml", tolerance=0.02, has_grown=True, configurations=configurations)


GREW = Comparison(
    name="gpt",
    torch="2.13.0",
    gpu="t4",
    change=Change.GREW,
    before=memory(4),
    after=memory(6),
    lines=(line("net/train it.py", 1, 2.9), line(None, 1, 1.1), line("net/train it.py", 0, 0.001, 9)),
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project in a folder of a repository, with a lock."""
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "sub"
    (folder / "net").mkdir(parents=True)
    (folder / "net" / "train it.py").write_text("import torch\n")
    (folder / "memory.lock.toml").write_text('schema = "autofit.lock/1"\n\n[configurations.gpt]\n')
    return folder


def test_what_grew_is_found_on_its_line_in_the_repository(project: Path) -> None:
    [found] = findings_of(check_of(GREW), project)
    assert (found.file, found.line) == ("sub/net/train it.py", 3)
    assert found.message == (
        "gpt on t4: this line in layers.* holds +1.90 GiB at the peak, which changed by +2.00 GiB (+50.0%)."
    )


def test_a_line_is_one_finding_of_all_configurations_that_it_made_grow(project: Path) -> None:
    [found] = findings_of(check_of(GREW, dataclasses.replace(GREW, gpu="l4")), project)
    assert found.message.count("this line in layers.* holds +1.90 GiB") == 2


def test_growth_without_a_line_of_the_project_is_shown_in_the_lock(project: Path) -> None:
    elsewhere = dataclasses.replace(GREW, lines=(line(None, 1, 2), line("site-packages/lib.py", 1, 2)))
    [found] = findings_of(check_of(elsewhere), project)
    assert (found.file, found.line) == ("sub/memory.lock.toml", 3)
    assert found.message == "gpt on t4: the peak changed by +2.00 GiB (+50.0%), by no line of this project."


@pytest.mark.parametrize("change", [Change.SAME, Change.SHRANK])
def test_what_did_not_grow_is_no_finding(project: Path, change: Change) -> None:
    assert findings_of(check_of(dataclasses.replace(GREW, change=change)), project) == ()


def test_a_fingerprint_stays_while_its_line_moves(project: Path) -> None:
    moved = dataclasses.replace(GREW, lines=(dataclasses.replace(GREW.lines[0], line=30),))
    [before], [after] = (findings_of(check_of(each), project) for each in (GREW, moved))
    assert (before.line, after.line) == (3, 30)
    assert before.fingerprint == after.fingerprint


def test_sarif_has_a_result_of_a_rule_at_a_place(project: Path) -> None:
    document = json.loads(FINDINGS["sarif"](check_of(GREW), project))
    assert document["version"] == "2.1.0"
    [run] = document["runs"]
    [result] = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    [location] = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "sub/net/train%20it.py"},
        "region": {"startLine": 3},
    }


@pytest.mark.skipif(not SARIF_SCHEMA, reason="AUTOFIT_SARIF_SCHEMA does not name the schema of SARIF 2.1.0")
@pytest.mark.parametrize("configurations", [(), (GREW,), (GREW, dataclasses.replace(GREW, lines=()))])
def test_sarif_is_as_its_schema_says(project: Path, configurations: tuple[Comparison, ...]) -> None:
    schema: dict[str, Any] = json.loads(Path(SARIF_SCHEMA).read_text())
    document = json.loads(FINDINGS["sarif"](check_of(*configurations), project))
    jsonschema.Draft4Validator(schema).validate(document)


def test_code_quality_has_what_gitlab_reads(project: Path) -> None:
    [found] = json.loads(FINDINGS["code-quality"](check_of(GREW), project))
    assert found["location"] == {"path": "sub/net/train it.py", "lines": {"begin": 3}}
    assert found["severity"] in ("info", "minor", "major", "critical", "blocker")
    assert found.keys() == {"description", "check_name", "fingerprint", "severity", "location"}


def test_markdown_has_the_table(project: Path) -> None:
    text = FINDINGS["markdown"](check_of(GREW), project)
    assert "| gpt | t4 | 2.13.0 | 4.00 GiB | 6.00 GiB |" in text
