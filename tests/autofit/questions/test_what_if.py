"""Levers: each a prediction of its own, ranked by what it saves."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from autofit import api
from autofit.errors import WorkloadFailedError
from autofit.events import Progress
from autofit.hardware.card import card_named
from autofit.predict.predictor import Predictor, local_predictor
from autofit.questions.what_if import what_if
from autofit.settings.workloads import refer
from autofit_workers.replay.plans.formula_plans import FormulaPlans
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import TrialError, Verdict
from autofit_workers.spec.setup import Setup

SMALL = f"{Path(__file__).parents[1] / 'tiny_workloads.py'}:small"
BATCH = 3


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """What the levers of a small step come to, who predicted it, and what was told meanwhile."""
    events = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        predictor = local_predictor(refer(SMALL), emit=events.append)
        yield what_if(predictor, Knobs(), card_named("t4"), BATCH, emit=events.append), predictor, events


def test_every_lever_is_the_estimate_of_its_setting(asked):
    answer, _, _ = asked
    assert answer.base == api.estimate(SMALL, batch_size=BATCH, gpu="t4")
    for result in answer.applicable:
        if result.lever.allocator:
            continue
        assert result.estimate.knobs == result.lever.knobs
        knobs = result.lever.knobs.to_dict()
        assert result.estimate == api.estimate(SMALL, batch_size=BATCH, gpu="t4", **knobs)
        assert result.saved_bytes == answer.base.peak_reserved_bytes - result.estimate.peak_reserved_bytes


def test_they_are_ranked_by_what_they_save_and_those_that_do_not_apply_come_last(asked):
    answer, _, _ = asked
    saved = [result.saved_bytes for result in answer.applicable]
    assert saved == sorted(saved, reverse=True)
    assert answer.results == (*answer.applicable, *answer.inapplicable)
    assert saved[0] > 0


def test_one_that_does_not_apply_says_why(asked):
    answer, _, _ = asked
    (pointwise,) = (result for result in answer.inapplicable if result.lever.value == "matmul-1x1")
    assert "applies to no convolution" in pointwise.reason
    assert pointwise.to_dict()["saved_bytes"] is None


def test_expandable_segments_change_what_is_reserved_and_nothing_else(asked):
    answer, _, _ = asked
    (result,) = (result for result in answer.applicable if result.lever.name == "allocator")
    assert result.estimate.trace_digest == answer.base.trace_digest
    # Its pages are of 20 MiB, and it needs no segment for each size.
    assert result.estimate.peak_reserved_bytes != answer.base.peak_reserved_bytes


def test_levers_that_share_a_trace_share_it(asked):
    answer, _, events = asked
    stages = [event.stage for event in events if isinstance(event, Progress)]
    traced = stages.count(f"tracing batch {BATCH}")
    assert traced < stages.count("trying levers")
    settings = {result.lever.knobs for result in answer.results if result.lever.name != "conv_algo"}
    without_trace = {
        result.lever.knobs for result in answer.inapplicable if result.lever.name in ("loss", "optimizer")
    }
    assert traced == len({Knobs(), *settings} - without_trace)


def test_inference_has_no_optimizer_to_change(tmp_path, monkeypatch):
    predictor = local_predictor(refer(SMALL), setup=Setup(mode="infer"))
    answer = what_if(predictor, Knobs(), card_named("t4"), 2)
    reasons = {result.lever.name: result.reason for result in answer.inapplicable}
    assert "neither an optimizer nor gradients" in reasons["optimizer_impl"]
    assert "neither an optimizer nor gradients" in reasons["set_to_none"]


def test_a_lever_whose_library_is_not_installed_says_how_to_get_it(workload, worker, card, exact, make_trace):
    worker.trace_at = lambda batch_size: dataclasses.replace(make_trace(batch_size), optimizer="adam")
    missing = TrialError(kind="missing-library", message="pip install bitsandbytes")

    def traced(spec):
        worker.failure = (Verdict.FAILED, missing) if spec.knobs.optimizer == "adamw8bit" else None
        return worker(spec)

    predictor = Predictor(workload, traced, residuals=exact, plans=FormulaPlans)
    answer = what_if(predictor, Knobs(optimizer="adam"), card, 2)
    reasons = {result.lever.how: result.reason for result in answer.inapplicable}
    assert reasons["--optimizer adamw8bit"] == "pip install bitsandbytes"


def test_a_workload_that_fails_as_it_is_has_no_levers():
    predictor = local_predictor(refer(f"{SMALL.removesuffix('small')}broken"))
    with pytest.raises(WorkloadFailedError, match="no such layer"):
        what_if(predictor, Knobs(), card_named("t4"), 2)
