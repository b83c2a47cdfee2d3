"""A model that is compiled: for real on the CPU, where there is a compiler for C++."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autofit_workers.apply.compiling import require_compilable
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.trials.run import run

SMALL_WORKLOADS = Path(__file__).parents[2] / "tracing" / "small_workloads.py"


def measured(attribute: str) -> TrialOutcome:
    spec = TrialSpec(
        workload=WorkloadRef(kind="file", target=f"{SMALL_WORKLOADS}:{attribute}"),
        batch_size=4,
        probe=Probe.CPU,
        num_threads=1,
        knobs=Knobs(compile=True),
        num_steps=1,
        num_warmup_steps=0,
    )
    return run(spec)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a compiler for C++ on the CPU")
def test_a_model_of_pytorchs_own_modules_is_compiled_into_one_graph():
    """`Module.compile` would do nothing for it."""
    outcome = measured("perceptron")
    assert outcome.verdict is Verdict.FITS, outcome.error
    assert outcome.environment["compile"] == "1 graph"
    assert outcome.steady is not None
    assert outcome.steady.allocated_bytes is not None, outcome.environment


@pytest.mark.process
def test_a_step_of_which_nothing_is_compiled_is_no_measurement_of_a_compiled_one():
    outcome = measured("past_the_model")
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error is not None
    assert outcome.error.kind == "inapplicable"
    assert "found nothing to compile" in outcome.error.message


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(compile=True, conv_algo="im2col"),
        Knobs(compile=True, conv_algo="mixed"),
        Knobs(compile=True, checkpointing="every:2"),
        Knobs(compile=True, checkpointing="selective"),
    ],
)
def test_knobs_that_reach_into_operators_do_not_go_with_it(knobs):
    with pytest.raises(InapplicableError, match="a compiled model has kernels of its own"):
        require_compilable(knobs)


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(conv_algo="im2col", checkpointing="selective"),
        Knobs(compile=True, conv_algo="cudnn-capped:64", checkpointing="blocks", precision="amp-bf16"),
    ],
)
def test_other_knobs_go_together(knobs):
    require_compilable(knobs)
