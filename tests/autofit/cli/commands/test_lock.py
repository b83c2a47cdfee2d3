"""`autofit lock`, `check --lock` and `diff`: what they write, their exit codes, and their sentences."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import pytest

from autofit.errors import WorkloadFailedError
from autofit.locks.configurations import Configuration
from autofit.locks.lock_file import LockedConfiguration, LockedHolder, LockedPeak, read_lock
from tests.commands import Finished

MIB = 1024**2
Run = Callable[..., Finished]

PROJECT = """
[tool.autofit.lock]
tolerance = "5%"

[tool.autofit.lock.configurations.davenet-64]
model = "davenet"
batch-size = 64
gpu = ["t4", "rtx-3090"]

[tool.autofit.lock.configurations.gpt2]
model = "gpt2"
batch-size = 8
"""


@pytest.fixture(autouse=True)
def project(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Folder of a project with two configurations, which is the current one."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    monkeypatch.chdir(folder)
    return folder


class Predicted:
    """Stand-in for the prediction of configurations, whose memory grows by `grown` bytes at a line."""

    def __init__(self, grown: int = 0) -> None:
        self.grown = grown
        self.asked: list[list[str]] = []

    def __call__(
        self, wanted: Sequence[Configuration], _folder: pathlib.Path, _emit: object
    ) -> tuple[LockedConfiguration, ...]:
        self.asked.append([each.name for each in wanted])
        return tuple(map(self._found, wanted))

    def _found(self, each: Configuration) -> LockedConfiguration:
        peaks = tuple(self._peak(gpu) for gpu in each.gpus or ("any",))
        return LockedConfiguration(name=each.name, arguments=each.arguments, peaks=peaks)

    def _peak(self, gpu: str) -> LockedPeak:
        size = 100 * MIB + self.grown
        return LockedPeak(
            torch=importlib.metadata.version("torch").partition("+")[0],
            gpu=gpu, likely_bytes=size, high_bytes=size, allocated_bytes=size, parameters_bytes=0,
            activations_bytes=size,
            holders=(
                LockedHolder(module="net.*", line="model.py:7", code="x = self.f(x)", num_bytes=size),
            ),
        )  # fmt: skip


def test_what_is_configured_is_written_and_the_same_again(autofit: Run, project: pathlib.Path) -> None:
    lock = Predicted()
    first = autofit("lock", lock=lock)
    assert first.code == 0
    assert "memory.lock.toml: written" in first.out
    assert lock.asked == [["davenet-64", "gpt2"]]
    written = (project / "memory.lock.toml").read_bytes()
    found = read_lock(project / "memory.lock.toml").configurations
    assert [peak.gpu for peak in found["davenet-64"].peaks] == ["rtx-3090", "t4"]
    assert found["gpt2"].arguments == ("--model", "gpt2", "--batch-size", "8")
    again = autofit("lock", lock=lock)
    assert "memory.lock.toml: as it was" in again.out
    assert (project / "memory.lock.toml").read_bytes() == written


def test_options_describe_a_configuration_that_is_locked_and_checked_by_its_name(autofit: Run) -> None:
    described = ("--model", "gpt2", "--batch-size", "2", "--gpu", "t4,l4", "--precision", "bf16")
    done = autofit("lock", "--name", "mine", *described, "--file", "other.toml", lock=Predicted())
    assert done.code == 0
    locked = read_lock(pathlib.Path("other.toml")).configurations
    assert list(locked) == ["mine"]
    check = Predicted()
    assert autofit("check", "--lock", "mine", "--file", "other.toml", lock=check).code == 0
    assert check.asked == [["mine"]]
    assert autofit("lock", "mine", "--file", "other.toml", lock=check).code == 0


def test_only_what_is_named_is_locked_and_the_rest_stays(autofit: Run) -> None:
    autofit("lock", lock=Predicted())
    assert autofit("lock", "gpt2", lock=Predicted(grown=MIB)).code == 0
    found = read_lock(pathlib.Path("memory.lock.toml")).configurations
    assert found["gpt2"].peaks[0].likely_bytes == 101 * MIB
    assert {peak.likely_bytes for peak in found["davenet-64"].peaks} == {100 * MIB}


def test_a_prediction_that_fails_leaves_the_former_lock(autofit: Run, project: pathlib.Path) -> None:
    autofit("lock", lock=Predicted())
    before = (project / "memory.lock.toml").read_bytes()

    def failing(*_: object) -> tuple[LockedConfiguration, ...]:
        raise WorkloadFailedError("gpt2: it fails")

    assert autofit("lock", lock=failing).code == 4
    assert (project / "memory.lock.toml").read_bytes() == before
    assert {path.name for path in project.iterdir()} == {"memory.lock.toml", "pyproject.toml"}


@pytest.mark.parametrize(
    ("grown", "options", "code"),
    [
        (0, (), 0),
        (5 * MIB, (), 0),
        (6 * MIB, (), 7),
        (6 * MIB, ("--tolerance", "6%"), 0),
        (1, ("--tolerance", "0%"), 7),
        (-50 * MIB, (), 0),
    ],
)
def test_the_exit_code_says_whether_a_peak_grew(
    autofit: Run, grown: int, options: tuple[str, ...], code: int
) -> None:
    autofit("lock", lock=Predicted())
    finished = autofit("check", "--lock", *options, lock=Predicted(grown))
    assert finished.code == code
    assert ("memory grew by more than" in finished.out) == (code == 7)
    assert ("+6.00 MiB" in finished.out and "model.py:7" in finished.out) == (grown == 6 * MIB and code == 7)
    assert ("keeps it from growing back" in " ".join(finished.out.split())) == (grown < 0)


def test_the_document_of_a_check_names_the_lines_that_grew(autofit: Run) -> None:
    autofit("lock", lock=Predicted())
    finished = autofit("check", "--lock", "gpt2", "--json", lock=Predicted(50 * MIB))
    document = finished.document
    assert (document["schema"], document["has_grown"], document["tolerance"]) == (
        "autofit.lock-check/1", True, 0.05,
    )  # fmt: skip
    ((one,),) = (document["configurations"],)
    assert (one["name"], one["change"], one["difference_bytes"]) == ("gpt2", "grew", 50 * MIB)
    assert one["lines"] == [
        {
            "module": "net.*", "file": "model.py", "line": 7, "former_line": None, "code": "x = self.f(x)",
            "before_bytes": 100 * MIB, "after_bytes": 150 * MIB, "difference_bytes": 50 * MIB,
        }
    ]  # fmt: skip


def test_a_configuration_that_was_changed_since_is_told_of(autofit: Run, project: pathlib.Path) -> None:
    autofit("lock", lock=Predicted())
    (project / "pyproject.toml").write_text(PROJECT.replace("batch-size = 8", "batch-size = 9"))
    finished = autofit("check", "--lock", lock=Predicted())
    assert finished.code == 0
    assert "gpt2 has other options than were locked" in " ".join(finished.out.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("check", "--lock", "--model", "gpt2"), "--lock checks what is locked and takes no --model"),
        (("check", "--lock", "--batch-size", "2"), "takes no --batch-size"),
        (("check", "--lock", "gtp2"), "has no configuration 'gtp2'. Did you mean gpt2?"),
        (("check", "--lock", "--tolerance", "lots"), "--tolerance: 'lots' is not a share below 100%"),
        (
            ("check", "--lock", "--file", "none.toml"),
            "there is no lock none.toml: write it with",
        ),
        (
            ("check", "gpt2", "--batch-size", "2", "--file", "x"),
            "--file, --sarif and --tolerance are of",
        ),
        (("check", "gpt2"), "Missing option '--batch-size'"),
        (("lock", "gtp2"), "Did you mean gpt2?"),
        (("lock", "--name", "a"), "--name a needs a configuration"),
        (("lock", "--model", "gpt2", "--batch-size", "2"), "Missing option '--name'"),
        (("lock", "gpt2", "--model", "gpt2"), "gpt2 is configured: leave out --model"),
        (("lock", "--name", "a", "--model", "gpt2"), "no batch size"),
        (("lock", "--name", "a", "--model", "gpt2", "--batch-size", "2", "--largest-batch"), "needs a card"),
        (("diff", "gpt2"), "two sides are compared, and 1 given"),
        (("diff", "gpt2", "gtp2"), "gtp2 is no file and no configuration. Did you mean gpt2?"),
        (("diff", "a", "b", "--model", "gpt2"), "--model is of --rev"),
        (("diff", "a", "b", "--json", "--markdown"), "exclude each other"),
        (("diff", "--rev", "HEAD", "nope"), "has no [tool.autofit.lock.configurations.nope]"),
    ],
)
def test_wrong_calls_are_told_in_a_sentence(autofit: Run, arguments: tuple[str, ...], says: str) -> None:
    autofit("lock", lock=Predicted())
    predicted = Predicted()
    finished = autofit(*arguments, lock=predicted)
    assert finished.code == 2
    assert says in finished.err + finished.out
    assert "Traceback" not in finished.err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("autofit.lock/1", "autofit.lock/7", "is of schema autofit.lock/7, and this autofit reads"),
        ('torch = "', 'torch = "1.', "has no peak of gpt2 without a card with PyTorch"),
        ("[configurations.gpt2]", "[configurations.gpt3]", "gpt2 is configured and not in memory.lock.toml"),
    ],
)
def test_a_lock_that_does_not_fit_is_told_before_anything_is_predicted(
    autofit: Run, project: pathlib.Path, old: str, new: str, says: str
) -> None:
    autofit("lock", lock=Predicted())
    path = project / "memory.lock.toml"
    text = path.read_text().replace(old, new)
    path.write_text(text.replace("[[configurations.gpt2", "[[configurations.gpt3") if "gpt3" in new else text)
    predicted = Predicted()
    finished = autofit("check", "--lock", "gpt2", lock=predicted)
    assert (finished.code, predicted.asked) == (2, [])
    assert says in finished.err


def test_two_locks_are_compared_as_text_as_markdown_and_as_a_document(autofit: Run) -> None:
    autofit("lock", "--file", "a.toml", lock=Predicted())
    autofit("lock", "--file", "b.toml", lock=Predicted(7 * MIB))
    shown = autofit("diff", "a.toml", "b.toml")
    assert shown.code == 0
    assert "+7.00 MiB" in shown.out
    text = autofit("diff", "a.toml", "b.toml", "--markdown").out
    assert "| **+7.00 MiB** | 100.00 MiB | 107.00 MiB | `net.*` | `model.py:7` | `x = self.f(x)` |" in text
    document = json.loads(autofit("diff", "a.toml", "b.toml", "--json").out)
    assert document["before"] == {"kind": "lock", "title": "a.toml"}
    assert [each["difference_bytes"] for each in document["configurations"]] == [7 * MIB] * 3


def test_two_configurations_and_a_lock_of_one_are_compared(autofit: Run) -> None:
    autofit("lock", "gpt2", "--file", "a.toml", lock=Predicted())
    (one,) = autofit("diff", "a.toml", "gpt2", "--json", lock=Predicted(MIB)).document["configurations"]
    assert (one["name"], one["difference_bytes"]) == ("gpt2", MIB)
    apart = autofit("diff", "davenet-64", "gpt2", "--json", lock=Predicted())
    assert apart.code == 2
    assert "no configuration, card and release of PyTorch in common" in apart.document["message"]


def test_a_diff_is_a_page_too(autofit: Run, project: pathlib.Path) -> None:
    autofit("lock", "gpt2", "--file", "a.toml", lock=Predicted())
    autofit("lock", "gpt2", "--file", "b.toml", lock=Predicted(7 * MIB))
    assert autofit("diff", "a.toml", "b.toml", "--report", "diff.html").code == 0
    page = (project / "diff.html").read_text()
    assert "model.py:7" in page
    assert "+7.00 MiB" in page


@pytest.fixture
def sarif(autofit: Run, project: pathlib.Path) -> Callable[[int], dict[str, Any]]:
    """SARIF log of a check whose one line grew by some bytes."""

    def made(grown: int) -> dict[str, Any]:
        autofit("lock", lock=Predicted())
        autofit("check", "--lock", "--sarif", "grown.sarif", lock=Predicted(grown))
        log: dict[str, Any] = json.loads((project / "grown.sarif").read_text())
        return log

    return made


def test_sarif_has_a_result_on_the_line_that_grew(
    sarif: Callable[[int], dict[str, Any]], project: pathlib.Path
) -> None:
    (project / "model.py").write_text("\n" * 9)
    (run,) = sarif(50 * MIB)["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "model.py"
    assert place["region"] == {"startLine": 7}
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    for name in ("davenet-64 on t4", "davenet-64 on rtx-3090", "gpt2"):
        assert f"{name}: this line in net.* holds +50.00 MiB at the peak" in result["message"]["text"]


def test_sarif_names_the_lock_where_no_line_of_the_project_grew(
    sarif: Callable[[int], dict[str, Any]],
) -> None:
    (run,) = sarif(50 * MIB)["runs"]
    uris = [
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for result in run["results"]
    ]
    assert uris == ["memory.lock.toml"] * 3
    (run,) = sarif(0)["runs"]
    assert run["results"] == []


@pytest.mark.skipif("AUTOFIT_SARIF_SCHEMA" not in os.environ, reason="AUTOFIT_SARIF_SCHEMA names no schema")
@pytest.mark.parametrize("grown", [0, 50 * MIB])
def test_sarif_is_as_its_published_schema_says(
    sarif: Callable[[int], dict[str, Any]], project: pathlib.Path, grown: int
) -> None:
    (project / "model.py").write_text("\n" * 9)
    schema = json.loads(pathlib.Path(os.environ["AUTOFIT_SARIF_SCHEMA"]).read_text())
    jsonschema.validate(sarif(grown), schema)


def test_a_diff_of_revisions_needs_a_repository(autofit: Run, project: pathlib.Path) -> None:
    finished = autofit("diff", "--rev", "main..HEAD")
    assert finished.code == 2
    assert f"{project} lies in no working tree that git may use (" in finished.err
