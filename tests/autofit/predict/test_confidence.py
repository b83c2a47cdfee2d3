"""How sure a prediction is: classes of models, and what real runs left over of each."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autofit.hardware.gpus import catalogue
from autofit.predict.confidence import (
    ANY,
    Calibration,
    ModelClass,
    Residuals,
    classify,
    generation,
    shipped_residuals,
)
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Trace
from autofit_workers.spec.work import Convolution, ConvPass

DENSE, GROUPED, ATTENTION = ModelClass.DENSE, ModelClass.GROUPED, ModelClass.ATTENTION
NO_CONVOLUTIONS = ModelClass.WITHOUT_CONVOLUTIONS


def activation(operator: str, num_bytes: int) -> Allocation:
    return Allocation(num_bytes=num_bytes, category=Category.ACTIVATION, operator=operator)


def convolved(num_bytes: int, *, groups: int = 1, conv_pass: ConvPass = ConvPass.FPROP) -> list[Allocation]:
    """A convolution's output of so many bytes, and the workspace that goes with it."""
    output, other = (1, num_bytes // 4, 1, 1), (1, 96, 1, 1)
    is_transposed = conv_pass is ConvPass.DGRAD
    convolution = Convolution(
        conv_pass=conv_pass,
        input_shape=output if is_transposed else other,
        weight_shape=(num_bytes // 4, 1, 3, 3),
        output_shape=other if is_transposed else output,
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
        groups=groups,
        dtype="float32",
        element_bytes=4,
    )
    workspace = Allocation(
        num_bytes=0, category=Category.WORKSPACE, operator="aten.convolution", convolution=convolution
    )
    return [activation("aten.convolution", num_bytes), workspace]


def trace_of(*allocations: Allocation) -> Trace:
    return Trace(
        workload="any",
        batch_size=4,
        mode="train",
        optimizer="sgd",
        knobs=Knobs(),
        allocations=allocations,
        events=tuple(range(len(allocations))),
    )


LINEAR = activation("aten.addmm", 10_000)
FUSED = activation("aten._scaled_dot_product_efficient_attention", 600)


@pytest.mark.parametrize(
    ("allocations", "model_class"),
    [
        ([LINEAR], NO_CONVOLUTIONS),
        ([], NO_CONVOLUTIONS),
        ([LINEAR, *convolved(6000)], DENSE),
        ([LINEAR, *convolved(6000, conv_pass=ConvPass.DGRAD)], DENSE),
        ([*convolved(7600), *convolved(400, groups=32)], DENSE),
        ([*convolved(4000), *convolved(1200, groups=32)], GROUPED),
        ([LINEAR, *convolved(900, groups=96)], ModelClass.DEPTHWISE),
        ([*convolved(4000), *convolved(1200, groups=96), *convolved(800, groups=32)], ModelClass.DEPTHWISE),
        ([LINEAR, FUSED], NO_CONVOLUTIONS),
        ([LINEAR, FUSED, *convolved(80)], ATTENTION),
        ([*convolved(8000), FUSED], DENSE),
        ([LINEAR, activation("aten._softmax", 4000)], NO_CONVOLUTIONS),
        ([LINEAR, activation("aten._softmax", 4), *convolved(4)], ModelClass.OTHER),
        ([LINEAR, activation("aten._scaled_dot_product_flash_attention", 40), *convolved(4)], ATTENTION),
        ([LINEAR, *convolved(40)], ModelClass.OTHER),
        ([LINEAR, activation("aten._log_softmax", 4000)], NO_CONVOLUTIONS),
        ([LINEAR, activation("aten._cudnn_rnn", 4000)], ModelClass.RECURRENT),
        ([*convolved(600), activation("aten._foreach_mul.Scalar", 10**6)], DENSE),
        ([LINEAR, activation("aten.sort", 4000)], ModelClass.OTHER),
        ([LINEAR, FUSED, activation("aten.topk", 400)], ATTENTION),
    ],
    ids=[
        "linear layers alone",
        "nothing",
        "dense",
        "transposed",
        "a grouped layer among dense ones",
        "ResNeXt",
        "ConvNeXt",
        "more depthwise than grouped",
        "transformer",
        "a patch embedding",
        "an attention block among convolutions",
        "attention that is not fused",
        "a classifier's softmax",
        "a small language model",
        "a patch embedding alone",
        "a loss",
        "recurrent",
        "a step of the workload's own",
        "sorted values, whose scratch is not known",
        "a router's experts",
    ],
)
def test_a_model_is_classed_by_what_makes_its_activations(
    allocations: list[Allocation], model_class: ModelClass
) -> None:
    assert classify(trace_of(*allocations)) is model_class


def test_gradients_and_parameters_do_not_decide_the_class() -> None:
    weights = dataclasses.replace(FUSED, category=Category.PARAMETER, num_bytes=10**9)
    assert classify(trace_of(*convolved(600), weights)) is DENSE


def calibration(low: float, high: float, **fields: Any) -> Calibration:
    return Calibration(
        **{
            "model_class": DENSE,
            "cards": "ampere-ada",
            "low_share": low,
            "high_share": high,
            "num_rows": 40,
            "num_families": 4,
            "sources": ("a-table",),
            **fields,
        }
    )


def test_the_ends_are_moved_outwards_to_whole_bytes() -> None:
    one = calibration(-0.031, 0.042)
    assert one.low_end(1000) == 969
    assert one.high_end(1000) == 1042
    assert (one.low_end(1001), one.high_end(1001)) == (969, 1044)
    assert (calibration(0.0, 0.0).low_end(7), calibration(0.0, 0.0).high_end(7)) == (7, 7)


def test_so_much_of_the_largest_workspace_is_added_as_real_runs_were_seen_to_need() -> None:
    quarter = calibration(-0.02, 0.04, workspace_share=0.25, spans=False)
    assert (quarter.on_top(1000), quarter.on_top(1001), quarter.on_top(0)) == (250, 251, 0)
    assert "95% range: with 25% of the largest workspace on top, widened" in quarter.note
    none = calibration(-0.02, 0.04, spans=False)
    assert none.on_top(1000) == 0
    assert "95% range: widened" in none.note


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.042, 0.3333, 1.0])
@pytest.mark.parametrize("limit_bytes", [0, 1, 999, 1000, 40_479_458_590])
def test_the_largest_peak_within_a_limit_is_exact_at_both_ends(share: float, limit_bytes: int) -> None:
    one = calibration(-share / 2, share)
    high = one.within_high_end(limit_bytes)
    assert one.high_end(high) <= limit_bytes < one.high_end(high + 1)
    low = one.within_low_end(limit_bytes)
    assert one.low_end(low) <= limit_bytes < one.low_end(low + 1)


RESIDUALS = Residuals(
    measured={
        (DENSE, "ampere-ada"): calibration(-0.02, 0.04, workspace_share=0.25, spans=False),
        (GROUPED, "ampere-ada"): calibration(-0.1, 0.01, model_class=GROUPED),
    },
    factor=1.5,
    extra_share=0.02,
)


def test_what_real_runs_are_known_of_has_their_shares_and_says_so() -> None:
    known = RESIDUALS.of(DENSE, "sm_86")
    assert (known.low_share, known.high_share, known.workspace_share) == (-0.02, 0.04, 0.25)
    assert not known.spans
    assert "95% range" in known.note
    assert "-2.0% and +4.0%" in known.note
    assert (
        "the errors of 40 real runs of convolutional-dense models on ampere-ada cards (a-table)" in known.note
    )


@pytest.mark.parametrize(
    ("model_class", "architecture", "shares", "said"),
    [
        (DENSE, "sm_90", (-0.02, 0.04), "convolutional-dense models on hopper cards"),
        (ModelClass.RECURRENT, "sm_80", (-0.17, 0.08), "recurrent models on ampere-ada cards"),
        (ModelClass.OTHER, "sm_120", (-0.17, 0.08), "other models on blackwell-or-newer cards"),
    ],
)
def test_where_no_real_runs_are_known_workspaces_span_and_a_class_without_any_is_wider(
    model_class: ModelClass, architecture: str, shares: tuple[float, float], said: str
) -> None:
    unknown = RESIDUALS.of(model_class, architecture)
    assert (unknown.low_share, unknown.high_share, unknown.workspace_share) == (*shares, 0.25)
    assert unknown.spans
    assert (unknown.num_rows, unknown.sources) == (0, ())
    assert f"no measurements of {said} exist" in unknown.note
    assert "(assumed)" in unknown.note


def test_where_the_card_may_be_of_several_generations_the_widest_interval_counts() -> None:
    residuals = shipped_residuals()
    names = ("sm_80", "sm_75", "sm_70", "sm_90")
    spanned, each = residuals.of(DENSE, *names), [residuals.of(DENSE, name) for name in names]
    assert spanned.low_share == min(one.low_share for one in each)
    assert spanned.high_share == max(one.high_share for one in each)
    assert spanned.num_rows == 0  # as soon as one of them rests on an assumption
    assert "on volta-turing or hopper cards exist" in spanned.note
    one = residuals.of(DENSE, "sm_80")
    assert residuals.of(DENSE, "sm_80", "sm_86", "sm_89") == dataclasses.replace(one, spans=True)
    assert residuals.of(DENSE, "sm_80", "sm_80") == one


def test_generations_that_were_all_measured_rest_on_the_rows_of_all() -> None:
    ampere = shipped_residuals().of(DENSE, "sm_80")
    hopper = dataclasses.replace(ampere, cards="hopper", high_share=0.3, num_rows=7, sources=("b-table",))
    measured = {(one.model_class, one.cards): one for one in (ampere, hopper)}
    spanned = Residuals(measured=measured, factor=2.0, extra_share=0.1).of(DENSE, "sm_90", "sm_80")
    assert (spanned.num_rows, spanned.high_share) == (ampere.num_rows + 7, 0.3)
    assert spanned.cards == "hopper or ampere-ada"
    assert set(spanned.sources) == {*ampere.sources, "b-table"}


def test_generations_cover_the_catalogue() -> None:
    assert {generation(gpu.architecture) for gpu in catalogue().values()} == {
        "pascal-or-older",
        "volta-turing",
        "ampere-ada",
        "hopper",
        "blackwell-or-newer",
        "amd-instinct",
    }
    assert generation("sm_61") == "pascal-or-older"


def test_the_shipped_residuals_hold_intervals_and_say_where_they_are_from() -> None:
    shipped = shipped_residuals()
    assert shipped.measured
    assert len(shipped.digest) == 64
    for one in shipped.measured.values():
        assert -1 < one.low_share <= 0 <= one.high_share
        assert 0 <= one.workspace_share <= 1
        assert one.spans == (one.model_class is NO_CONVOLUTIONS)
        assert one.num_rows >= one.num_families > 0
        assert one.sources
        elsewhere = shipped.of(one.model_class, "sm_61")
        if one.cards == ANY:
            assert elsewhere == one
            continue
        assert (elsewhere.low_share, elsewhere.high_share) == (one.low_share, one.high_share)
        assert (elsewhere.spans, elsewhere.num_rows) == (True, 0)


def test_residuals_of_another_schema_are_refused() -> None:
    with pytest.raises(ValueError, match=r"autofit\.residuals/2"):
        Residuals.from_toml('schema = "autofit.residuals/1"')


def test_amd_s_cards_have_no_real_runs_of_their_own() -> None:
    """What is left where shapes decide every size is the model's own; of the rest the widest, and more."""
    shipped = shipped_residuals()
    alike, dense = shipped.of(NO_CONVOLUTIONS, "gfx942"), shipped.of(DENSE, "gfx90a")
    measured = shipped.of(NO_CONVOLUTIONS, "sm_80")
    assert (alike.low_share, alike.high_share) == (measured.low_share, measured.high_share)
    assert (measured.cards, alike.cards) == (ANY, "amd-instinct")
    assert "all of them on NVIDIA's cards" in alike.note
    assert "AMD" not in measured.note and "NVIDIA" not in measured.note
    assert dense.num_rows == 0
    assert "no measurements of convolutional-dense models on amd-instinct cards exist" in dense.note


def test_studies_of_0_2_go_on_with_the_residuals_that_are_shipped() -> None:
    """Another digest, be it of a comment, begins every study anew: it is changed with new residuals alone."""
    assert shipped_residuals().digest.startswith("8e9d689316165837")
