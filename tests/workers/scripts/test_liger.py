"""Liger's kernels in a script that transformers trains, where Triton need not be installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.workloads.scripts import Script
from autofit_workers.trials.run import run
from tests.workers.predicted import peaks_of

EXAMPLE = Path(__file__).parent / "examples" / "liger.py"
BATCH, TOKENS, VOCABULARY = 8, 64, 32000

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("liger_kernel") is None,
    reason="needs Liger: pip install --no-deps liger-kernel",
)


def predicted(monkeypatch: pytest.MonkeyPatch, kernels: str) -> TrialOutcome:
    monkeypatch.setenv("KERNELS", kernels)
    reference = Script(path=EXAMPLE, batch_variable="BATCH").reference()
    outcome = run(TrialSpec(workload=reference, batch_size=BATCH, probe=Probe.PREDICT))
    assert outcome.verdict is Verdict.TRACED, outcome.error
    return outcome


def test_the_logits_of_all_tokens_are_never_whole_with_ligers_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, liger = predicted(monkeypatch, ""), predicted(monkeypatch, "liger")
    logits_bytes = BATCH * TOKENS * VOCABULARY * 4
    saved_bytes = peaks_of(plain).allocated_bytes - peaks_of(liger).allocated_bytes
    # Logits, their logarithms and both gradients were there; now they are made in chunks of tokens.
    assert 2 * logits_bytes < saved_bytes < 4 * logits_bytes
    assert liger.trace_json is not None
    trace = Trace.from_json(liger.trace_json)
    assert max(each.num_bytes for each in trace.allocations) < logits_bytes
    assert any("kernels of Triton" in note for note in trace.notes)
