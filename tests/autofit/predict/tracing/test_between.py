"""Answers about sizes between traced ones: equal bytes as from a trace of that very size, and no process."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from autofit.cli import main as autofit
from autofit_workers.replay.curve.peak_curve import TRACED_BATCH_SIZES
from autofit_workers.spec.protocol import TrialOutcome, TrialSpec
from autofit_workers.trials import door

_LARGEST = 24
_BETWEEN = (7, 23)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Batch sizes of the trials that ran, with a 0 for each start of the process that they run in."""
    sizes: list[int] = []
    run, start = door.run, door.start_predictor

    def counted(spec: TrialSpec) -> TrialOutcome:
        sizes.append(spec.batch_size)
        return run(spec)

    def started(**options: bool) -> None:
        sizes.append(0)
        start(**options)

    monkeypatch.setattr(door, "run", counted)
    monkeypatch.setattr(door, "start_predictor", started)
    return sizes


def answer(command: str, options: Sequence[str], batch_size: int) -> str:
    out = io.StringIO()
    words = [command, *options, "--batch-size", str(batch_size), "--gpu", "h100-80g", "--json", "--quiet"]
    with contextlib.redirect_stdout(out):
        assert autofit(words) == 0
    return out.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        ["--model", "davenet"],
        ["--model", "resnet50"],
        ["--model", "gpt2"],
        [
            *("--model", "davenet-audio", "--precision", "amp-bf16", "--memory-format", "channels_last"),
            *("--optimizer", "adamw", "--grad-accumulation", "2", "--allocator", "expandable_segments"),
        ],
        ["--model", "davenet-audio", "--parallel", "ddp:4"],
        ["--model", "davenet-audio", "--mode", "infer"],
    ],
    ids=" ".join,
)
def test_answers_are_those_of_a_trace_of_the_very_size(
    traced: list[int], options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (*TRACED_BATCH_SIZES, _LARGEST):
        answer("estimate", options, size)
    del traced[:]
    known = {
        (size, command): answer(command, options, size)
        for size in _BETWEEN
        for command in ("check", "estimate")
    }
    assert traced == []
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path / "empty"))
    assert known == {(size, command): answer(command, options, size) for size, command in known}
    assert set(_BETWEEN) <= set(traced)


def test_a_search_makes_the_traces_from_which_other_sizes_are_answered(traced: list[int]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert (
            autofit(["tune", "--model", "lstm", "--gpu-mem", "3G", "--max-batch", "64", "--json", "--quiet"])
            == 0
        )
    largest = max(traced)
    assert largest > max(TRACED_BATCH_SIZES)
    del traced[:]
    for command in ("estimate", "check"):
        answer(command, ["--model", "lstm"], largest - 1)
        assert traced == []
        answer(command, ["--model", "lstm", "--fresh"], largest - 1)
        assert traced == [0, largest - 1]
        del traced[:]
