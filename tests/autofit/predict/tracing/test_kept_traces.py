"""Traces that are kept answer later questions without a trial, until something that decides them changes."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autofit import paths, surroundings
from autofit.events import Event, Progress
from autofit.hardware.card import Card
from autofit.predict.confidence import Residuals
from autofit.predict.predictor import Predictor
from autofit.predict.tracing import kept_traces
from autofit.predict.tracing.kept_traces import KeptTraces
from autofit.predict.tracing.known_models import is_any_known
from autofit_workers.process.sources import content_digest
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Probe,
    ScriptCall,
    TrialError,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.trace import Trace

GIB = 1024**3
CUDNN = Knobs()


@dataclasses.dataclass
class Asked:
    """Trials that ran, and starts of the processes that they run in."""

    worker: Any
    sources: dict[str, str]
    num_starts: int = 0
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    def start(self) -> None:
        self.num_starts += 1

    def run(self, spec: TrialSpec) -> TrialOutcome:
        outcome: TrialOutcome = self.worker(spec)
        return dataclasses.replace(outcome, sources=self.sources, environment=self.environment)

    def ask(self, spec: TrialSpec, *, fresh: bool = False) -> TrialOutcome:
        return KeptTraces(self.run, self.start, fresh=fresh).run(spec)


@pytest.fixture(autouse=True)
def first_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each test begin as a process does."""
    monkeypatch.setattr(kept_traces, "_at_start", {})


@pytest.fixture
def asked(worker: Any) -> Asked:
    return Asked(worker, {})


@pytest.fixture
def spec(workload: WorkloadRef) -> TrialSpec:
    return TrialSpec(workload=workload, batch_size=4, probe=Probe.PREDICT)


def test_a_trial_runs_once_and_no_process_is_started_for_the_second_question(
    asked: Asked, spec: TrialSpec
) -> None:
    first = asked.ask(spec)
    assert asked.ask(spec) == first
    assert asked.worker.traced == [4]
    assert asked.num_starts == 1


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 5},
        {"knobs": Knobs(precision="bf16")},
        {"setup": Setup(mode="infer")},
        {"with_calls": True},
        {"workload": WorkloadRef(kind="file", target="/a.py:workload", source_sha256="1")},
    ],
)
def test_another_trial_is_run(asked: Asked, spec: TrialSpec, change: dict[str, Any]) -> None:
    asked.ask(spec)
    asked.ask(dataclasses.replace(spec, **change))
    assert len(asked.worker.specs) == 2


def test_a_trial_runs_again_when_a_file_that_it_used_has_changed(
    asked: Asked, spec: TrialSpec, tmp_path: Path
) -> None:
    used = tmp_path / "settings.yaml"
    written(used, "width: 1")
    asked.sources[str(used)] = content_digest(used) or ""
    asked.ask(spec)
    asked.ask(spec)
    assert len(asked.worker.specs) == 1
    written(used, "width: 2")
    asked.ask(spec)
    used.unlink()
    asked.ask(spec)
    assert len(asked.worker.specs) == 3


def test_a_trace_is_not_kept_of_a_file_that_changes_while_the_trial_runs(
    asked: Asked, spec: TrialSpec, tmp_path: Path
) -> None:
    """The trial may have read it before, and its digest be that of afterwards."""
    used = tmp_path / "settings.yaml"
    used.write_text("width: 1", encoding="utf-8")
    asked.sources[str(used)] = content_digest(used) or ""
    asked.ask(spec)
    asked.ask(spec)
    assert len(asked.worker.specs) == 2


def test_a_trace_is_not_kept_under_what_changes_while_the_trial_runs(
    asked: Asked, spec: TrialSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = asked.worker.trace_at

    def changing(batch_size: int) -> Trace:
        monkeypatch.setenv("MODEL_WIDTH", "7")
        trace: Trace = at_once(batch_size)
        return trace

    asked.worker.trace_at = changing
    asked.ask(spec)
    asked.ask(spec)
    assert len(asked.worker.specs) == 2


def test_a_trace_is_not_kept_with_other_variables_than_its_process_has(
    asked: Asked, spec: TrialSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that predicts lives on, with the variables that it was started with."""
    asked.ask(spec)
    monkeypatch.setenv("MODEL_WIDTH", "7")
    asked.ask(spec)
    asked.ask(spec)
    assert len(asked.worker.specs) == 3
    monkeypatch.delenv("MODEL_WIDTH")
    asked.ask(spec)
    assert len(asked.worker.specs) == 3


def written(path: Path, text: str) -> None:
    """Writes a file that has not changed for long."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (1e9, 1e9))


def test_a_trial_runs_again_when_a_file_beside_used_ones_has_changed(
    asked: Asked, spec: TrialSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a tokenizer's file, which a library in another language reads; and one of the current folder."""
    model, here = tmp_path / "model", tmp_path / "here"
    for folder in (model, here):
        folder.mkdir()
    for path in (model / "config.json", model / "tokenizer.json", here / "vocabulary.bin"):
        written(path, "one")
    monkeypatch.chdir(here)
    own = dataclasses.replace(spec, workload=WorkloadRef(kind="file", target="/a.py:workload"))
    asked.sources[str(model / "config.json")] = content_digest(model / "config.json") or ""
    asked.ask(own)
    written(here / "answer.json", "a new file is no change")
    asked.ask(own)
    assert len(asked.worker.specs) == 1
    for number, path in enumerate((model / "tokenizer.json", here / "vocabulary.bin")):
        written(path, "other")  # only its size tells
        asked.ask(own)
        asked.ask(own)
        assert len(asked.worker.specs) == 2 + number
    os.utime(model / "tokenizer.json", (2e9, 2e9))
    asked.ask(own)
    (model / "tokenizer.json").unlink()
    asked.ask(own)
    assert len(asked.worker.specs) == 5


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def with_variable(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    monkeypatch.setenv("MODEL_WIDTH", "7")


def with_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine-2.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


@pytest.mark.parametrize("change", [elsewhere, with_variable, with_package])
def test_a_trial_runs_again_in_other_surroundings(
    asked: Asked,
    spec: TrialSpec,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: Callable[[pytest.MonkeyPatch, Path], None],
) -> None:
    asked.ask(spec)
    change(monkeypatch, tmp_path)
    asked.ask(spec)
    assert len(asked.worker.specs) == 2


def test_a_package_that_was_installed_from_a_folder_counts_with_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times = itertools.count(1)

    def installed(record: str, *, from_folder: bool) -> str:
        metadata = tmp_path / "mine-1.0.dist-info"
        shutil.rmtree(metadata, ignore_errors=True)
        metadata.mkdir()
        (metadata / "RECORD").write_text(record, encoding="utf-8")
        if from_folder:
            (metadata / "direct_url.json").write_text("{}", encoding="utf-8")
        os.utime(tmp_path, (0, next(times)))  # file systems tell times by milliseconds
        return surroundings.installed_packages()

    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed("mine.py,sha256=1,9", from_folder=True) != installed(
        "mine.py,sha256=2,9", from_folder=True
    )
    assert installed("mine.py,sha256=1,9", from_folder=False) == installed(
        "mine.py,sha256=2,9", from_folder=False
    )


def test_variables_of_terminals_and_secrets_change_nothing(
    asked: Asked, spec: TrialSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.ask(spec)
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    asked.ask(spec)
    assert len(asked.worker.specs) == 1


def test_a_fresh_question_runs_the_trial_and_keeps_its_outcome(asked: Asked, spec: TrialSpec) -> None:
    asked.ask(spec)
    asked.ask(spec, fresh=True)
    assert len(asked.worker.specs) == 2
    asked.ask(spec)
    assert len(asked.worker.specs) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"workload": WorkloadRef(kind="script", target="/train.py", script=ScriptCall())},
        {"architecture": "cpu"},
    ],
)
def test_trials_of_scripts_and_for_the_cpu_are_always_run(
    asked: Asked, spec: TrialSpec, change: dict[str, Any]
) -> None:
    own = dataclasses.replace(spec, **change)
    asked.ask(own)
    asked.ask(own)
    assert len(asked.worker.specs) == 2


def test_a_failure_is_kept_of_a_builtin_model_alone(asked: Asked, spec: TrialSpec) -> None:
    asked.worker.failure = Verdict.FAILED, TrialError(kind="user", message="needs two samples")
    asked.environment = {"exception": "ValueError"}
    assert asked.ask(spec) == asked.ask(spec)
    assert len(asked.worker.specs) == 1
    own = dataclasses.replace(spec, workload=WorkloadRef(kind="import", target="mine:workload"))
    asked.ask(own)
    asked.ask(own)
    assert len(asked.worker.specs) == 3


def test_a_failure_for_want_of_memory_is_not_kept(asked: Asked, spec: TrialSpec) -> None:
    asked.worker.failure = Verdict.FAILED, TrialError(kind="user", message="MemoryError")
    asked.environment = {"exception": "MemoryError"}
    asked.ask(spec)
    asked.ask(spec)
    assert len(asked.worker.specs) == 2


@pytest.mark.parametrize("setup", [Setup(allows_network=True), Setup(allows_subprocesses=True)])
def test_workloads_that_may_read_more_are_always_traced(asked: Asked, spec: TrialSpec, setup: Setup) -> None:
    own = dataclasses.replace(spec, setup=setup)
    asked.ask(own)
    asked.ask(own)
    assert len(asked.worker.specs) == 2


def test_a_deleted_current_folder_costs_a_trial(
    asked: Asked, spec: TrialSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    asked.ask(spec)
    asked.ask(spec)
    assert len(asked.worker.specs) == 2


def test_processes_are_started_once(asked: Asked, spec: TrialSpec) -> None:
    kept = KeptTraces(asked.run, asked.start)
    for batch_size in (1, 2, 3):
        kept.run(dataclasses.replace(spec, batch_size=batch_size))
    assert asked.num_starts == 1


def test_a_trace_is_kept_by_the_digest_of_its_text(asked: Asked, spec: TrialSpec, state_dir: Path) -> None:
    text = asked.ask(spec).trace_json
    assert text is not None
    digest = Trace.from_json(text).digest
    path = state_dir / "traces" / f"{digest}.json.gz"
    assert gzip.decompress(path.read_bytes()).decode() == text


def damaged(content: bytes) -> Iterator[bytes]:
    yield b""
    yield content[: len(content) // 2]
    yield bytes(len(content))
    for place in range(0, len(content), max(1, len(content) // 20)):
        for bit in (0, 7):
            yield content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def test_every_file_may_be_damaged(asked: Asked, spec: TrialSpec, state_dir: Path) -> None:
    expected = asked.ask(spec)
    kept = KeptTraces(asked.run, asked.start)
    kept.prove(spec, {})
    files = [path for path in state_dir.rglob("*") if path.is_file()]
    assert len(files) == 4  # outcome, trace, note and proof
    for path in files:
        content = path.read_bytes()
        for other in damaged(content):
            path.write_bytes(other)
            assert asked.ask(spec) == expected
            assert kept.is_proved(spec) in (True, False)
            path.write_bytes(content)


def test_a_damaged_trace_is_written_again(asked: Asked, spec: TrialSpec, state_dir: Path) -> None:
    asked.ask(spec)
    (path,) = (state_dir / "traces").iterdir()
    path.write_bytes(b"\0" * 100)
    asked.ask(spec)
    asked.ask(spec)
    assert len(asked.worker.specs) == 2


def test_progress_tells_of_traces_that_are_made_alone(
    worker: Any, workload: WorkloadRef, exact: Residuals
) -> None:
    def told() -> list[Event]:
        events: list[Event] = []
        kept = KeptTraces(worker, lambda: None)
        Predictor(workload, kept.run, emit=events.append, residuals=exact, kept=kept).trace(CUDNN, 4)
        return events

    assert told() == [Progress(stage="tracing batch 4")]
    assert told() == []


def test_a_trial_is_answered_where_nothing_can_be_kept(
    asked: Asked, spec: TrialSpec, state_dir: Path
) -> None:
    state_dir.write_text("no folder", encoding="utf-8")
    assert asked.ask(spec) == asked.ask(spec)
    assert len(asked.worker.specs) == 2


def test_files_are_removed_that_were_long_not_used_or_take_too_much_space(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "used", "old", "oldest")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (time.time() - 100 * age,) * 2)
    paths.touch(tmp_path / "oldest")
    paths.bound(tmp_path, most_bytes=1000, most_seconds=150)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "oldest", "used"]
    paths.bound(tmp_path, most_bytes=200, most_seconds=150)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "oldest"]
    paths.bound(tmp_path / "missing", most_bytes=1, most_seconds=1)


def test_a_clock_that_jumps_removes_at_most_what_can_be_made_again(
    asked: Asked, spec: TrialSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = asked.ask(spec)
    for years in (-30, 30):
        now = time.time() + years * 365 * 24 * 3600
        monkeypatch.setattr(time, "time", lambda now=now: now)
        paths.bound(paths.kept_path(), most_bytes=10**9, most_seconds=90 * 24 * 3600)
        assert asked.ask(spec) == expected


# ── proofs ──────────────────────────────────────────────────────────────────────────────────────


def test_a_proof_covers_smaller_batch_sizes_of_the_same_setting(
    worker: Any, spec: TrialSpec, tmp_path: Path
) -> None:
    kept, used = KeptTraces(worker, lambda: None), tmp_path / "model.py"
    written(used, "one")
    at = dataclasses.replace(spec, batch_size=50)
    assert not kept.is_proved(at)
    kept.prove(at, {str(used): content_digest(used) or ""})
    assert kept.is_proved(at)
    assert kept.is_proved(dataclasses.replace(at, batch_size=49))
    assert not kept.is_proved(dataclasses.replace(at, batch_size=51))
    assert not kept.is_proved(dataclasses.replace(at, knobs=Knobs(optimizer="adamw")))
    kept.prove(dataclasses.replace(at, batch_size=20), {})
    assert kept.is_proved(at), "a smaller proof replaced a larger one"
    used.write_text("two", encoding="utf-8")
    assert not kept.is_proved(at)


def test_a_smaller_size_is_confirmed_without_a_trace(
    worker: Any, workload: WorkloadRef, exact: Residuals, card: Card
) -> None:
    def sizes_traced(batch_size: int) -> list[int]:
        worker.specs.clear()
        kept = KeptTraces(worker, lambda: None)
        predictor = Predictor(workload, kept.run, residuals=exact, plans=FormulaPlans, kept=kept)
        predictor.curve(CUDNN, card)
        predictor.expect_to_confirm(CUDNN, batch_size)
        assert predictor.confirm(CUDNN, card, batch_size)
        return list(worker.traced)

    assert sizes_traced(64) == [*TRACED_BATCH_SIZES, 64]
    assert sizes_traced(40) == []
    assert sizes_traced(65) == [65]
    assert sizes_traced(1) == [1]  # shapes of 1 take branches of their own


# ── sizes between those that were traced ────────────────────────────────────────────────────────


def primed(asked: Asked, spec: TrialSpec, *sizes: int) -> Callable[[int], TrialOutcome]:
    """Traces the curve's sizes and others, and returns what asks for a size, after nothing was run yet."""

    def ask(batch_size: int) -> TrialOutcome:
        return asked.ask(dataclasses.replace(spec, batch_size=batch_size))

    for size in (*TRACED_BATCH_SIZES, *sizes):
        ask(size)
    asked.worker.specs.clear()
    return ask


def test_a_size_below_one_that_agrees_is_answered_without_a_trial(asked: Asked, spec: TrialSpec) -> None:
    expected = {size: asked.run(dataclasses.replace(spec, batch_size=size)) for size in (5, 30, 31, 50)}
    asked.num_starts = 0
    ask = primed(asked, spec, 50)
    num_starts = asked.num_starts
    assert {size: ask(size) for size in expected} == expected
    assert asked.worker.traced == []
    assert asked.num_starts == num_starts


def test_sizes_beyond_those_that_agree_are_traced(asked: Asked, spec: TrialSpec) -> None:
    ask = primed(asked, spec, 50)
    for size in (1, 2, 3, 51):
        ask(size)
    assert asked.worker.traced == [1, 2, 3, 51]
    ask(50 + 1)
    assert asked.worker.traced == [1, 2, 3, 51]


def test_without_the_traces_of_the_curve_each_size_is_traced(asked: Asked, spec: TrialSpec) -> None:
    for size in (4, 6, 50, 30):
        asked.ask(dataclasses.replace(spec, batch_size=size))
    assert asked.worker.traced == [4, 6, 50, 30]


@pytest.mark.parametrize(
    ("changes_at", "expected"),
    [
        (8, [12, 30]),  # the traces of the curve differ among themselves
        (20, [12, 30]),  # the trace above differs
        (51, []),
    ],
)
def test_a_step_that_changes_with_its_batch_is_traced(
    asked: Asked, spec: TrialSpec, make_trace: Any, changes_at: int, expected: list[int]
) -> None:
    asked.worker.trace_at = lambda size: make_trace(size, num_extra=1 if size >= changes_at else 0)
    ask = primed(asked, spec, 50)
    for size in (12, 30):
        ask(size)
    assert asked.worker.traced == expected


def test_the_trace_below_has_to_agree_too(asked: Asked, spec: TrialSpec, make_trace: Any) -> None:
    asked.worker.trace_at = lambda size: make_trace(size, num_extra=1 if size == 28 else 0)
    ask = primed(asked, spec, 28, 50)
    ask(30)
    ask(20)
    assert asked.worker.traced == [30, 20]


def test_odd_sizes_of_code_that_is_not_autofits_need_an_odd_size_above(
    asked: Asked, spec: TrialSpec, make_trace: Any
) -> None:
    asked.worker.trace_at = lambda size: make_trace(size, num_extra=size % 2)
    library = dataclasses.replace(spec, workload=WorkloadRef(kind="library", target="timm:resnet18"))
    ask = primed(asked, library, 50)
    ask(30)
    assert asked.worker.traced == []
    ask(31)
    ask(29)  # 31 is above it, and differs
    assert asked.worker.traced == [31, 29]


def test_odd_sizes_are_answered_below_an_odd_one_that_agrees(asked: Asked, spec: TrialSpec) -> None:
    library = dataclasses.replace(spec, workload=WorkloadRef(kind="library", target="timm:resnet18"))
    ask = primed(asked, library, 51)
    for size in (31, 30):
        ask(size)
    assert asked.worker.traced == []


def test_a_size_between_is_traced_after_a_file_has_changed(
    asked: Asked, spec: TrialSpec, tmp_path: Path
) -> None:
    used = tmp_path / "settings.yaml"
    written(used, "width: 1")
    asked.sources[str(used)] = content_digest(used) or ""
    ask = primed(asked, spec, 50)
    assert ask(30).sources == asked.sources
    written(used, "width: 2")
    ask(30)
    assert asked.worker.traced == [30]


def test_a_fresh_question_of_a_size_between_runs_the_trial(asked: Asked, spec: TrialSpec) -> None:
    primed(asked, spec, 50)
    asked.ask(dataclasses.replace(spec, batch_size=30), fresh=True)
    assert asked.worker.traced == [30]


def test_a_workload_of_one_batch_alone_is_traced_at_each_size(asked: Asked, spec: TrialSpec) -> None:
    at_one = asked.worker.trace_at(1)
    asked.worker.trace_at = lambda _size: at_one
    ask = primed(asked, spec, 50)
    ask(30)
    assert asked.worker.traced == [30]


def test_damaged_files_cost_a_trial_of_a_size_between(asked: Asked, spec: TrialSpec, state_dir: Path) -> None:
    expected = asked.run(dataclasses.replace(spec, batch_size=30))
    for file in ("kept/*", "traces/*"):
        shutil.rmtree(state_dir, ignore_errors=True)
        ask = primed(asked, spec, 50)
        for path in state_dir.glob(file):
            path.write_bytes(b"[")
        assert ask(30) == expected
        assert asked.worker.traced == [30]


def test_a_size_between_is_told_as_no_trace_that_is_made(
    asked: Asked, spec: TrialSpec, exact: Residuals, card: Card
) -> None:
    events: list[Event] = []

    def estimate(batch_size: int) -> None:
        kept = KeptTraces(asked.run, asked.start)
        predictor = Predictor(
            spec.workload, kept.run, residuals=exact, plans=FormulaPlans, kept=kept, emit=events.append
        )
        predictor.estimate(CUDNN, card, batch_size)

    for size in (*TRACED_BATCH_SIZES, 50):
        estimate(size)
    del events[:]
    estimate(30)
    assert events == []
    estimate(60)
    assert events == [Progress(stage="tracing batch 60")]


# ── models whose traces are kept ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", [["step"], ["--model", "step"], ["--gpu-mem=16G", "--model=step"]])
def test_a_model_whose_traces_are_kept_is_known_by_the_words_of_a_command(
    asked: Asked, spec: TrialSpec, words: list[str]
) -> None:
    assert not is_any_known(words, with_calls=False)
    asked.ask(spec)
    assert is_any_known(words, with_calls=False)
    assert not is_any_known(words, with_calls=True)
    assert not is_any_known(["other", "--gpu-mem", "a\0b"], with_calls=False)


def test_a_file_is_known_by_its_path_from_here(
    asked: Asked, spec: TrialSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = WorkloadRef(kind="file", target=f"{tmp_path}/train.py:workload")
    asked.ask(dataclasses.replace(spec, workload=own))
    monkeypatch.chdir(tmp_path)
    assert is_any_known(["train.py:workload"], with_calls=False)
