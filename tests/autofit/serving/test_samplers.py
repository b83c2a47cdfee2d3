"""Samplers as they are replayed, beside the same operators traced on a GPU that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.serving.architecture import Architecture
from autofit.serving.profile_run import (
    Pass,
    Sampler,
    platform,
    replay,
    sorted_sampler,
    sorted_sampler_in_half,
)
from autofit_workers.spec.protocol import Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.trials.run import run
from tests.autofit.serving import sampler_workloads
from tests.autofit.serving.models import parts
from tests.autofit.serving.sampler_workloads import HIDDEN, SEQS, TOKENS, VOCABULARY
from tests.bench.language.runs import Seen

WORKLOADS = Path(sampler_workloads.__file__)


@pytest.mark.parametrize(
    ("workload", "sampler"), [("of_float32", sorted_sampler), ("of_half", sorted_sampler_in_half)]
)
def test_a_sampler_peaks_where_its_operators_do(workload: str, sampler: Sampler) -> None:
    reference = WorkloadRef(kind="file", target=f"{WORKLOADS}:{workload}")
    outcome = run(TrialSpec(workload=reference, batch_size=TOKENS, probe=Probe.PREDICT))
    assert outcome.trace_json is not None, outcome.error
    traced = Seen(Trace.from_json(outcome.trace_json), "sm_80").replay.peak_allocated_bytes
    one = Pass(
        architecture=Architecture.of(
            parts({}, hidden_size=HIDDEN, num_attention_heads=1, vocab_size=VOCABULARY)
        ),
        num_ranks=1,
        num_tokens=TOKENS,
        num_seqs=SEQS,
        element_bytes=2,
        platform=platform("sm_80", (2, 5)),
        num_sms=108,
    )
    weights = VOCABULARY * HIDDEN * 2
    assert traced == pytest.approx(replay(one, sampler).allocated_bytes + weights, rel=0.005)
