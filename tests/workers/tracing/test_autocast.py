"""Mixed precision: what autocast copies, how often, and for how long."""

from __future__ import annotations

import pytest


def casts(steps, step: int = 2, dtype: str = "bfloat16"):
    made = steps.allocations("forward", step=step)
    return [a for a in made if a.operator == "aten._to_copy" and a.dtype == dtype]


def test_every_weight_is_cast_once_a_step(steps_of):
    steps = steps_of("perceptron", precision="amp-bf16")
    for step in (1, 2, 3):
        sizes = [(a.module, a.num_bytes) for a in casts(steps, step)]
        assert sizes == [
            ("0", 48 * 2),  # bias, weight, input
            ("0", 48 * 16 * 2),
            ("0", 4 * 16 * 2),
            ("2", 2 * 2),
            ("2", 2 * 48 * 2),
        ]


def test_a_weight_that_is_used_twice_is_cast_once(steps_of):
    # The second use finds the copy in autocast's cache.
    weights = [a for a in casts(steps_of("residual", precision="amp-bf16")) if a.shape == (16, 16)]
    assert len(weights) == 1


def test_the_copies_do_not_outlive_the_step(steps_of):
    steps = steps_of("perceptron", precision="amp-bf16")
    assert {a.dtype for a in steps.live()} == {"float32"}
    assert steps.live_bytes() == steps.live_bytes("parameter", "gradient")


def test_copies_that_backward_does_not_need_are_freed_with_autocasts_cache(steps_of):
    steps = steps_of("perceptron", precision="amp-bf16")
    kept = [
        a.shape
        for a in steps.live("step 2 backward")
        if a.operator == "aten._to_copy" and a.dtype == "bfloat16"
    ]
    assert kept == [(4, 16), (2, 48)]  # the first layer's input; the second layer's weight


def test_gradients_are_float32_again(steps_of):
    gradients = [a for a in steps_of("perceptron", precision="amp-bf16").live() if a.category == "gradient"]
    assert [a.dtype for a in gradients] == ["float32"] * 4
    assert {a.operator for a in gradients} == {"aten._to_copy"}


def test_products_run_in_half_precision_and_the_loss_in_single(steps_of):
    made = steps_of("perceptron", precision="amp-bf16").allocations("forward")
    dtypes = {a.operator: a.dtype for a in made if a.operator != "aten._to_copy"}
    assert dtypes == {
        "aten.addmm": "bfloat16",
        "aten.relu": "bfloat16",
        "aten.pow.Tensor_Scalar": "float32",
        "aten.mean": "float32",
    }


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_softmax_makes_float32_of_float16_itself_and_of_bfloat16_a_copy_first(name, steps_of):
    def made(phase: str, precision: str) -> list[tuple[str, str]]:
        steps = steps_of(name, precision=precision)
        outputs = [a for a in steps.allocations(phase, module="1") if not a.correction]
        return [(a.operator, a.dtype) for a in outputs]

    operator = f"aten._{name}"
    assert made("forward", "amp-fp16") == [(operator, "float32")]
    assert made("backward", "amp-fp16") == [(f"{operator}_backward_data", "float16")]
    assert made("forward", "amp-bf16") == [("aten._to_copy", "float32"), (operator, "float32")]
    assert made("forward", "fp32") == [(operator, "float32")]


def test_the_cache_which_is_a_table_by_address_does_not_make_traces_differ(outcome_of):
    traces = {outcome_of("convolutional", precision="amp-bf16").trace_json for _ in range(5)}
    assert len(traces) == 1
