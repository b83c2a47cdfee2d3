"""The documents that are printed: the fields that the contracts `tune/1` and `estimate/1` name."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from autofit.events import Event, Progress
from autofit.hardware.budget import make_budget
from autofit.hardware.card import Card
from autofit.hardware.gpus import gpus_sold_as
from autofit.predict.estimate import Estimate, WorkspaceSpan
from autofit.settings.goals import Risk
from autofit.tuning.alternatives import card_answers
from autofit.tuning.compared import CardAnswer
from autofit.tuning.found import Best, FrontierEntry
from autofit.tuning.result import TuneResult
from autofit_workers.spec.architecture import Architecture
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence

MIB, GIB = 1024**2, 1024**3
KNOBS = Knobs(conv_algo="native", optimizer="adam")


@pytest.fixture
def estimate(make_curve: Any) -> Estimate:
    return make_curve(KNOBS)(8)


@pytest.fixture
def result(estimate: Estimate) -> TuneResult:
    return TuneResult(
        workload="step",
        budget=make_budget(16 * GIB, reserve_bytes=GIB),
        device=Device(kind="cuda", name="a-card", driver="570.1"),
        best=Best(
            batch_size=8,
            knobs=KNOBS,
            peak_allocated_bytes=1,
            peak_reserved_bytes=2,
            device_peak_bytes=3,
            evidence=Evidence.PREDICTED,
            interval=estimate.interval,
            workspace_bytes=WorkspaceSpan(low=0, likely=4, high=5),
        ),
        frontier=(
            FrontierEntry(
                knobs=KNOBS,
                largest_batch=8,
                peak_reserved_bytes=2,
                device_peak_bytes=3,
                first_failing_batch=9,
                reason="batch 9 is predicted to fail",
                evidence=Evidence.PREDICTED,
                largest_by_risk={Risk.SAFE: 8, Risk.LIKELY: 9, Risk.WORST: None},
            ),
        ),
        trials=(),
        wall_seconds=1.5,
        study="step-a-card-0",
        fingerprint="0",
        versions={"torch": "2.13.0"},
        estimate=estimate,
        cards=(CardAnswer(gpu="t4", total_bytes=15 * GIB, largest_batch=None),),
        notes=("a note",),
    )


def test_the_document_of_a_search_holds_what_its_contract_names(result: TuneResult) -> None:
    document = json.loads(result.to_json())
    assert document["schema"] == "autofit.tune/1"
    budget = document["budget"]
    assert budget["device_total_bytes"] == 16 * GIB
    assert (
        budget["context_bytes"] + budget["other_bytes"] + budget["margin_bytes"] + budget["usable_bytes"]
        == budget["device_total_bytes"]
    )
    assert budget["context"].keys() == {"low_bytes", "likely_bytes", "high_bytes", "basis"}
    assert budget["context"]["high_bytes"] == budget["context_bytes"]
    assert document["device"] == {"kind": "cuda", "name": "a-card", "driver": "570.1"}
    best = document["best"]
    assert best["knobs"] == {
        "conv_algo": "native",
        "precision": "fp32",
        "memory_format": "contiguous",
        "optimizer": "adam",
        "optimizer_impl": "default",
        "set_to_none": True,
        "checkpointing": "none",
        "allocator": "default",
        "grad_accumulation": 1,
        "global_batch": None,
        "compile": False,
        "activation_budget": None,
        "attention": "default",
        "adapter": None,
        "base": None,
        "clip_grad_norm": None,
        "seq_len": None,
        "new_tokens": None,
        "cache": "dynamic",
        "num_beams": 1,
        "optimizer_in_backward": False,
        "kernels": "default",
        "loss": "full",
        "batch_layout": "full",
    }
    assert best["interval"].keys() == {"low_bytes", "likely_bytes", "high_bytes"}
    assert (best["batch_size"], best["evidence"], best["step_seconds"]) == (8, "predicted", None)
    assert best["workspace_bytes"] == {"low": 0, "likely": 4, "high": 5}
    assert document["risk"] == "safe"
    (entry,) = document["frontier"]
    assert entry["largest_by_risk"] == {"safe": 8, "likely": 9, "worst": None}
    assert (entry["largest_batch"], entry["first_failing_batch"]) == (8, 9)
    assert entry["reason"] == "batch 9 is predicted to fail"
    assert document["cards"] == [{"gpu": "t4", "total_bytes": 15 * GIB, "largest_batch": None}]
    assert (document["num_trials"], document["wall_seconds"]) == (0, 1.5)
    assert document["versions"] == {"torch": "2.13.0"}


def test_the_document_of_a_search_says_which_model_it_is_of(result: TuneResult, estimate: Estimate) -> None:
    named = dataclasses.replace(
        estimate, model_class="Net", num_parameters=15, inputs={"pixel_values": (3, 8, 8)}
    )
    document = json.loads(dataclasses.replace(result, estimate=named).to_json())
    assert (document["model_class"], document["num_parameters"]) == ("Net", 15)
    assert document["estimate"]["inputs"] == {"pixel_values": [3, 8, 8]}
    without = json.loads(dataclasses.replace(result, estimate=None).to_json())
    assert (without["model_class"], without["num_parameters"]) == (None, None)


def test_where_nothing_fits_the_best_is_null(result: TuneResult) -> None:
    assert json.loads(dataclasses.replace(result, best=None).to_json())["best"] is None


def test_the_document_of_an_estimate_holds_what_its_contract_names(estimate: Estimate) -> None:
    document = json.loads(estimate.to_json())
    assert document["schema"] == "autofit.estimate/1"
    assert document["breakdown"].keys() == {
        "parameters",
        "gradients",
        "optimizer_state",
        "activations",
        "inputs",
        "workspace",
        "other",
    }
    assert sum(document["breakdown"].values()) == document["peak_allocated_bytes"] == 260 * MIB
    assert document["device_peak_bytes"] == document["peak_reserved_bytes"] + document["context_bytes"]
    assert document["interval"]["likely_bytes"] == document["peak_reserved_bytes"]
    assert (document["evidence"], document["device"]["kind"]) == ("predicted", "cuda")
    assert document["workspace_bytes"] is None
    assert document["calibration"].keys() == {
        "model_class",
        "cards",
        "low_share",
        "high_share",
        "workspace_share",
        "spans",
        "num_rows",
        "num_families",
        "observed",
        "sources",
    }
    assert {field.name for field in dataclasses.fields(estimate)} == document.keys() - {
        "schema",
        "peak_phase",
        "samples_per_step",
    }


def test_every_card_of_a_class_is_answered_smallest_first_and_said(make_curve: Any) -> None:
    cards = gpus_sold_as(16 * GIB)
    curve, events = make_curve(num_channels=256), list[Event]()
    answers = card_answers(curve, cards, margin=0, reserve_bytes=0, sizes=range(1, 801), emit=events.append)
    assert [answer.gpu for answer in answers] == [gpu.key for gpu in cards]
    for answer, gpu in zip(answers, cards, strict=True):
        budget = make_budget(gpu.total_bytes, architecture=gpu.architecture, card=gpu.key, margin=0)
        on_card = curve.on(Card(name=gpu.key, architecture=gpu.architecture, context_bytes=0))
        assert answer.largest_batch is not None
        assert on_card.peak_reserved_bytes(answer.largest_batch) <= budget.usable_bytes
        assert on_card.peak_reserved_bytes(answer.largest_batch + 1) > budget.usable_bytes
    assert [event.done for event in events if isinstance(event, Progress)] == list(range(len(cards)))


def test_a_card_on_which_the_reserve_leaves_nothing_is_answered_with_nothing(make_curve: Any) -> None:
    cards = gpus_sold_as(16 * GIB)
    answers = card_answers(
        make_curve(),
        cards,
        margin=0,
        reserve_bytes=cards[0].total_bytes - 128 * MIB,
        sizes=range(1, 301),
        emit=lambda _event: None,
    )
    assert answers[0].largest_batch is None
    assert answers[-1].largest_batch is not None


def test_cards_that_cannot_run_it_are_left_out(make_curve: Any) -> None:
    cards = gpus_sold_as(8 * GIB)
    curve = make_curve(operator="flash_attn._flash_attn_forward")
    answers = card_answers(
        curve, cards, margin=0, reserve_bytes=0, sizes=range(1, 301), emit=lambda _event: None
    )
    has = {gpu.key: gpu.architecture for gpu in cards}
    left_out = {has.pop(gpu) for gpu in has.keys() - {answer.gpu for answer in answers}}
    assert "sm_75" in left_out
    assert all(Architecture.of(each).capability >= 80 for each in has.values())
