"""The recorder on a real card, over every built-in workload, precision and convolution policy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict, WorkloadRef
from autofit_workers.trials import record
from autofit_workers.trials.run import run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Where the rows are kept, to be committed under tests/data/ground_truth; without it they are dropped.
ROWS = os.environ.get("AUTOFIT_GROUND_TRUTH_OUT")
CASES = [
    pytest.param(model, knobs, id=f"{model}-{knobs.precision}-{knobs.conv_algo}")
    for model in record.BATCH_SIZES
    for knobs in record.COMBINATIONS
    if record.applies(model, knobs)
]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory):
    path = Path(ROWS) if ROWS else tmp_path_factory.mktemp("rows") / "rows.jsonl"
    with path.open("a", encoding="utf-8") as file:
        record.write_row(file.write, record.device_row())
        yield file
    assert len(record.rows_in(path)) > 1


@pytest.mark.parametrize(("model", "knobs"), CASES)
def test_every_built_in_workload_runs_in_every_precision_with_every_policy(rows, model: str, knobs: Knobs):
    reference = WorkloadRef(kind="builtin", target=model)
    batch_size, *_ = record.BATCH_SIZES[model]
    spec = TrialSpec(workload=reference, batch_size=batch_size, probe=Probe.CUDA, knobs=knobs)
    outcome = run(spec)
    record.write_row(rows.write, record.trial_row(spec, outcome))
    rows.flush()
    assert outcome.error is None
    assert outcome.verdict in (Verdict.FITS, Verdict.THRASH, Verdict.OOM)
    if outcome.verdict is Verdict.FITS:
        assert outcome.num_steps_done == 4
        assert outcome.samples_per_second > 0
        assert "evaluation" not in outcome.environment
        assert "checkpoint" not in outcome.environment
