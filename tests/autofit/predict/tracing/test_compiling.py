"""Progress while PyTorch's compiler runs in a prediction."""

from __future__ import annotations

from typing import Any

from autofit.events import Event, Progress
from autofit.predict.predictor import Predictor
from autofit.predict.tracing.compiling import CompilingProgress
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Heartbeat, TrialOutcome, TrialSpec
from autofit_workers.trials import isolate

STAGE = "tracing batch 8"


def test_the_graph_that_is_being_compiled_is_told_each_second_until_it_is_compiled() -> None:
    events, seconds = list[Event](), 50.0
    hear = CompilingProgress(STAGE, events.append, lambda: seconds)
    for phase, duration in (
        ("prediction", 7.0),
        ("compiling graph 1", 0.4),  # too short to tell
        ("compiling graph 2", 2.2),
        ("prediction", 0.5),
        ("prediction", 9.0),
    ):
        begin = seconds
        while seconds < begin + duration:
            hear(Heartbeat(phase=phase))
            seconds += 0.5
    assert events == [
        Progress(stage=STAGE, detail="compiling graph 2 (1 s)"),
        Progress(stage=STAGE, detail="compiling graph 2 (2 s)"),
        Progress(stage=STAGE),
    ]
    assert events[0].in_words == "tracing batch 8: compiling graph 2 (1 s)"


def test_a_trace_reports_to_whoever_asked_for_it(worker: Any, workload: Any) -> None:
    heard: list[object] = []

    def run(spec: TrialSpec) -> TrialOutcome:
        heard.append(isolate._report.get())
        outcome: TrialOutcome = worker(spec)
        return outcome

    Predictor(workload, run).trace(Knobs(), 8)
    (report,) = heard
    assert isinstance(report, CompilingProgress)
    assert not isinstance(isolate._report.get(), CompilingProgress)
