"""What stderr shows while a search runs."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from autofit.cli.text.progress import ProgressLine
from autofit.events import Noted, Progress, TrialFinished, TrialStarted, TuneStarted
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import (
    Device,
    Evidence,
    Peaks,
    Probe,
    TrialOutcome,
    TrialSpec,
    Verdict,
    WorkloadRef,
)

SPEC = TrialSpec(workload=WorkloadRef(kind="builtin", target="davenet"), batch_size=61, probe=Probe.CPU)
OUTCOME = TrialOutcome(
    verdict=Verdict.FITS,
    evidence=Evidence.MEASURED_CPU,
    device=Device(kind="cpu", name="cpu"),
    batch_size=61,
    knobs=Knobs(),
    steady=Peaks(device_bytes=3 * 1024**3),
    wall_seconds=34.56,
)
STUDY = "davenet-cpu-1"
STARTED = TuneStarted(workload="davenet", gpu="cpu", budget_bytes=1024**3, study=STUDY, started_seconds=1.0)


def shown(events, *, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, color_system=None, highlight=False)
    with ProgressLine(console) as progress:
        for event in events:
            progress(event)
    return file.getvalue()


def test_the_budget_and_the_study_are_told_when_the_search_begins():
    text = shown([STARTED], terminal=False)
    assert text == "davenet: 1.00 GiB (1,073,741,824 bytes) usable; study davenet-cpu-1\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_measured_trial_leaves_one_line(terminal: bool):
    text = shown(
        [
            TrialStarted(study=STUDY, trial=3, spec=SPEC, started_seconds=1.0),
            TrialFinished(study=STUDY, trial=3, spec=SPEC, outcome=OUTCOME),
        ],
        terminal=terminal,
    )
    assert text.count("trial 3: cudnn, batch 61: FITS, peak 3.00 GiB, 34.6 s\n") == 1


def test_a_trial_without_a_peak_says_how_it_ended():
    lost = dataclasses.replace(OUTCOME, verdict=Verdict.LOST, steady=Peaks())
    text = shown([TrialFinished(study=STUDY, trial=0, spec=SPEC, outcome=lost)], terminal=False)
    assert text == "trial 0: cudnn, batch 61: LOST, 34.6 s\n"


def test_elsewhere_than_on_a_terminal_a_stage_is_one_line_and_a_prediction_none():
    predicted = dataclasses.replace(SPEC, probe=Probe.PREDICT)
    stage = [Progress(stage="cards of this class", done=done, total=14) for done in range(14)]
    trials = [
        event
        for number in range(5)
        for event in (
            TrialStarted(study=STUDY, trial=number, spec=predicted, started_seconds=1.0),
            TrialFinished(study=STUDY, trial=number, spec=predicted, outcome=OUTCOME),
        )
    ]
    text = shown([Progress(stage="tracing batch 4"), *trials, *stage], terminal=False)
    assert text.splitlines() == ["tracing batch 4", "searching the curves", "cards of this class"]


def test_what_takes_long_is_a_line_every_ten_seconds_where_there_is_no_terminal():
    file, seconds = io.StringIO(), 100.0
    with ProgressLine(Console(file=file, width=100), lambda: seconds) as progress:
        progress(Progress(stage="tracing batch 4"))
        for number in range(1, 24):
            seconds = 100.0 + number
            progress(Progress(stage="tracing batch 4", detail=f"compiling graph 3 ({number} s)"))
    assert file.getvalue().splitlines() == [
        "tracing batch 4",
        "tracing batch 4: compiling graph 3 (10 s)",
        "tracing batch 4: compiling graph 3 (20 s)",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_note_leaves_a_line_of_its_own(terminal: bool):
    text = shown([Progress(stage="tracing batch 4"), Noted(text="Ray could not start")], terminal=terminal)
    assert "Ray could not start\n" in text


def test_on_a_terminal_stages_share_one_line_that_is_gone_at_the_end():
    events = [
        Progress(stage="tracing batch 4"),
        TrialStarted(study=STUDY, trial=7, spec=SPEC, started_seconds=1.0),
        Progress(stage="cards of this class", done=2, total=14),
    ]
    text = shown(events, terminal=True)
    assert "cards of this class 3/14" in text
    assert text.rstrip("\n").endswith("\x1b[2K")  # the line is erased
    assert text.count("\n") <= 1
    compiling = Progress(stage="tracing batch 4", detail="compiling graph 1 (2 s)")
    assert "tracing batch 4: compiling graph 1 (2 s)" in shown([events[0], compiling], terminal=True)
