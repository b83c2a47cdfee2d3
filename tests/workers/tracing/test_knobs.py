"""What each knob changes in a predicted step. Layers 16 → 48 → 2, batch 4, unless said otherwise."""

from __future__ import annotations

import pytest

PARAMETERS_BYTES = [48 * 16 * 4, 48 * 4, 2 * 48 * 4, 2 * 4]


def scalars(steps, phase, step):
    return [a.operator.removeprefix("aten.") for a in steps.allocations(phase, step=step) if a.shape == ()]


@pytest.mark.parametrize("precision", ["ieee-fp32", "tf32"])
def test_tf32_moves_no_tensor(precision, steps_of):
    steps, default = steps_of("convolutional", precision=precision), steps_of("convolutional")
    assert steps.trace.events == default.trace.events
    assert steps.trace.allocations == default.trace.allocations
    assert steps.trace.knobs.precision == precision


def test_float16_products_have_the_copies_of_bfloat16_ones(steps_of):
    half, brain = (
        steps_of("perceptron", precision=precision).outputs("forward")
        for precision in ("amp-fp16", "amp-bf16")
    )
    assert half == brain


def test_a_scaler_keeps_its_scale_and_its_growth_tracker_from_the_first_step_on(steps_of):
    steps = steps_of("perceptron", precision="amp-fp16")
    kept = [(a.shape, a.dtype) for a in steps.live() if a.category == "other"]
    assert kept == [((), "float32"), ((), "int32")]
    assert scalars(steps, "backward", 1)[:3] == ["full", "full", "mul.Tensor"]
    assert scalars(steps, "backward", 2)[:1] == ["mul.Tensor"]


def test_a_scaler_inverts_its_scale_in_double_precision_and_looks_for_overflows(steps_of):
    steps = steps_of("perceptron", precision="amp-fp16")
    assert scalars(steps, "optimizer", 2) == ["_to_copy", "reciprocal", "_to_copy", "full"]


def test_the_optimizer_steps_under_a_scaler_without_a_value_being_known(steps_of):
    steps = steps_of("perceptron", precision="amp-fp16", optimizer="adam")
    assert steps.live_bytes("optimizer_state") == 2 * sum(PARAMETERS_BYTES)


def test_a_scaler_of_the_users_own_steps_too(steps_of):
    steps = steps_of("scaled_by_itself", optimizer="adam")
    assert steps.live_bytes("optimizer_state") == 2 * sum(PARAMETERS_BYTES)


def test_a_value_that_a_step_reads_is_made_up_under_a_scaler_too(outcome_of):
    outcome = outcome_of("item", precision="amp-fp16")
    assert outcome.error is None, outcome.error


def test_a_fused_optimizer_is_told_of_overflows_on_the_gpu(steps_of):
    steps = steps_of("perceptron", precision="amp-fp16", optimizer="adam", optimizer_impl="fused")
    assert scalars(steps, "optimizer", 2) == ["full", "full", "add.Tensor", "mul.Tensor"]


def test_inference_in_float16_needs_no_scaler(steps_of):
    steps = steps_of("perceptron", precision="amp-fp16", mode="infer")
    assert {a.category for a in steps.live()} == {"parameter"}


def test_bf16_halves_the_model_its_gradients_and_its_states(steps_of):
    steps = steps_of("perceptron", precision="bf16", optimizer="adam")
    assert {a.dtype for a in steps.live()} == {"bfloat16"}
    assert steps.live_bytes() == 4 * sum(PARAMETERS_BYTES) // 2
    assert steps.outputs("input") == [("randn", 4 * 16 * 4), ("_to_copy", 4 * 16 * 2)]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-fp16"])
def test_channels_last_reaches_every_convolution_and_is_never_converted_back(precision, steps_of):
    steps = steps_of("convolutional", memory_format="channels_last", precision=precision)
    made = [
        *steps.allocations("forward", module="0"),
        *steps.allocations("forward", module="4"),
        *steps.allocations("backward", module="0"),
        *steps.allocations("backward", module="4"),
    ]
    assert {a.convolution.channels_last for a in made if a.convolution is not None} == {True}
    copies = [a.shape for a in steps.allocations("forward") if a.operator == "aten.clone"]
    assert copies == [(4, 6, 2, 2)]  # the last map is flattened in the order of channels first
    assert steps.outputs("input")[-1:] == [("_to_copy", 4 * 3 * 10 * 12 * (2 if precision == "bf16" else 4))]


def test_a_contiguous_network_calls_cudnn_so_even_with_a_single_channel(steps_of):
    made = steps_of("one_channel").allocations("forward")
    assert [a.convolution.channels_last for a in made if a.convolution is not None] == [False]


def test_volumes_have_a_channels_last_of_their_own(steps_of):
    made = steps_of("volumes", memory_format="channels_last").allocations("forward")
    assert [a.convolution.channels_last for a in made if a.convolution is not None] == [True, True]
    assert [a for a in made if a.operator in ("aten.clone", "aten._to_copy")] == []


def test_double_precision_is_never_channels_last(steps_of):
    made = steps_of("double_images", memory_format="channels_last").allocations("forward")
    assert [a.convolution.channels_last for a in made if a.convolution is not None] == [False]


def test_a_fused_optimizer_has_no_temporaries_and_counts_its_steps_on_the_gpu(steps_of):
    steps = steps_of("perceptron", optimizer="adam", optimizer_impl="fused")
    assert steps.outputs("optimizer") == []
    assert steps.live_bytes("optimizer_state") == 2 * sum(PARAMETERS_BYTES) + 4 * 4


def test_a_loop_has_the_temporaries_of_one_parameter_at_a_time(steps_of):
    steps = steps_of("perceptron", optimizer="adam", optimizer_impl="loop")
    assert steps.outputs("optimizer") == [
        (operator, size) for size in PARAMETERS_BYTES for operator in ("sqrt", "div.Tensor")
    ]


def test_gradients_of_zeros_stay_through_the_forward_pass(steps_of):
    kept, dropped = (
        steps_of("perceptron", set_to_none=set_to_none).live_bytes("gradient", mark="step 2 backward")
        for set_to_none in (False, True)
    )
    assert (kept, dropped) == (sum(PARAMETERS_BYTES), 0)


def test_checkpointed_blocks_keep_their_inputs_alone(steps_of):
    plain, checkpointed = (
        steps_of("blocks", checkpointing=checkpointing).live_bytes("activation", mark="step 2 backward")
        for checkpointing in ("none", "blocks")
    )
    assert checkpointed < plain / 2


def test_a_model_without_blocks_cannot_be_checkpointed(outcome_of):
    outcome = outcome_of("perceptron", checkpointing="blocks")
    assert outcome.error.kind == "inapplicable"
    assert "choose --checkpointing none" in outcome.error.message


def test_what_has_no_fused_kernel_is_refused_as_in_a_measurement(outcome_of):
    outcome = outcome_of("perceptron", optimizer="rmsprop", optimizer_impl="fused")
    assert outcome.error.kind == "user"
    assert "no fused CUDA kernel for rmsprop" in outcome.error.message
