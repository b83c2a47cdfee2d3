"""A run that was observed, as its file tells it, and what of it is no peak of a card."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from autofit.errors import UsageError
from autofit.predict.intervals.observations import PeakKind
from autofit.questions.real_runs.observed_run import ObservedRun, RunPeaks, observed_run_in
from autofit_workers.spec.protocol import Device, Evidence

GIB = 1024**3


def a_run(**changes: Any) -> ObservedRun:
    run = ObservedRun(
        mode="train",
        num_steps=3,
        device=Device(kind="cuda", name="NVIDIA GeForce RTX 3090", driver="580.1"),
        evidence=Evidence.MEASURED,
        peaks=RunPeaks(allocated_bytes=2 * GIB, reserved_bytes=3 * GIB, device_bytes=4 * GIB),
        before=RunPeaks(allocated_bytes=0, reserved_bytes=0),
        torch="2.13.0",
    )
    return dataclasses.replace(run, **changes)


def test_a_file_gives_back_the_run_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    run = a_run(workload="resnet50", batch_size=32, knobs={"precision": "bf16"}, evaluation=RunPeaks())
    file.write_text(run.to_json())
    assert observed_run_in(file) == run
    assert run.gpu.key == "rtx-3090"


def test_the_reserved_peak_tells_more_than_the_allocated_one() -> None:
    assert a_run().peak == (PeakKind.RESERVED, 3 * GIB)
    assert a_run(peaks=RunPeaks(allocated_bytes=GIB)).peak == (PeakKind.ALLOCATED, GIB)
    assert a_run(mode="infer", num_steps=None).peak == (PeakKind.RESERVED, 3 * GIB)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_steps": 0}, "no optimizer step ended in the run"),
        ({"num_ranks": 2}, "one of 2 ranks"),
        ({"peaks": RunPeaks()}, "had reached a larger peak before the run"),
    ],
)
def test_peaks_that_tell_nothing_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        _ = a_run(**changes).peak


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (Device(kind="cpu", name="a processor"), "was on the CPU .a processor., whose resident set tells"),
        (Device(kind="cuda", name="Voodoo"), "Voodoo is not in the catalogue"),
    ],
)
def test_a_device_without_predictions_is_refused(device: Device, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        _ = a_run(device=device).gpu


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"schema": "autofit.tune/1"}'])
def test_another_file_is_no_run(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert observed_run_in(file) is None
    assert observed_run_in(tmp_path / "none") is None


def test_a_damaged_run_is_said_to_be(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**a_run().to_dict(), "peaks": 3}))
    with pytest.raises(UsageError, match=r"is no whole autofit.observed-run/1: run the loop again"):
        observed_run_in(file)
