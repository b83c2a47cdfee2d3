"""Fixture that traces scripts written by tests, with the scripts' own batches."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.run import run


@pytest.fixture
def traced(tmp_path):
    """Traces a script with its own batch; the script is written to `tmp_path` as train.py."""

    def trace(text: str) -> Trace:
        path = tmp_path / "train.py"
        path.write_text(text)
        ref = Script(path=path).reference()
        own = dataclasses.replace(ref, script=dataclasses.replace(ref.script, keeps_batch=True))
        outcome = run(TrialSpec(workload=own, batch_size=1, probe=Probe.PREDICT))
        assert outcome.verdict is Verdict.TRACED, outcome.error
        return Trace.from_json(outcome.trace_json)

    return trace
