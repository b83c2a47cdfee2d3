"""Operators allocate what CUDA's kernels allocate, on a build of PyTorch that has none of them.

Batch 4; layers 16 → 48 → 2 unless said otherwise; sizes in bytes, float32 unless said otherwise.
"""

from __future__ import annotations

import pytest
import torch

from autofit_workers.spec.versions import release_of
from autofit_workers.spec.work import ConvPass

HIDDEN_BYTES = 4 * 48 * 4
IS_2_13 = release_of(torch.__version__) == "2.13"
HEADS_BYTES = 4 * 2 * 6 * 8 * 4  # batch × heads × sequence × head size


@pytest.mark.parametrize("activation", ["silu", "mish"])
def test_an_activation_with_a_composite_fallback_has_one_output_in_each_direction(activation, steps_of):
    steps = steps_of(activation)
    assert steps.outputs("forward", module="1") == [(activation, HIDDEN_BYTES)]
    assert steps.outputs("backward", module="1") == [(f"{activation}_backward", HIDDEN_BYTES)]


def test_rms_norm_is_one_kernel_that_keeps_a_number_per_row(steps_of):
    steps = steps_of("rms_norm")
    assert steps.outputs("forward", module="1") == [
        ("_fused_rms_norm", HIDDEN_BYTES),
        ("_fused_rms_norm", 4 * 4),
    ]
    assert steps.outputs("backward", module="1") == [
        ("_fused_rms_norm_backward", HIDDEN_BYTES),
        ("_fused_rms_norm_backward", 48 * 4),
    ]


def test_dropout_keeps_a_mask_of_one_byte_per_element(steps_of):
    steps = steps_of("dropout")
    output, mask = steps.allocations("forward", module="1")
    assert (output.operator, output.num_bytes, output.dtype) == (
        "aten.native_dropout",
        HIDDEN_BYTES,
        "float32",
    )
    assert (mask.operator, mask.num_bytes, mask.dtype) == ("aten.native_dropout", HIDDEN_BYTES // 4, "bool")
    assert steps.outputs("backward", module="1") == [("native_dropout_backward", HIDDEN_BYTES)]


def test_dropout_does_nothing_in_inference(steps_of):
    assert steps_of("dropout", mode="infer").outputs("forward", module="1") == []


def test_a_linear_layer_on_sequences_is_one_product_with_the_bias_in_it(steps_of):
    assert steps_of("sequence").outputs("forward", module="") == [
        ("addmm", 4 * 5 * 48 * 4),
        ("pow.Tensor_Scalar", 4 * 5 * 48 * 4),
        ("mean", 4),
    ]


def test_a_linear_layer_on_a_strided_input_copies_it_and_adds_the_bias_in_place(steps_of):
    assert steps_of("strided_sequence").outputs("forward", module="")[:2] == [
        ("clone", 4 * 5 * 16 * 4),
        ("mm", 4 * 5 * 48 * 4),
    ]


def test_attention_in_float32_is_memory_efficient(steps_of):
    steps = steps_of("attention")
    kernel = "_scaled_dot_product_efficient_attention"
    logsumexp_bytes = 4 * 2 * 32 * 4  # the sequence padded to 32
    assert steps.outputs("forward", module="")[:4] == [
        (kernel, HEADS_BYTES),
        (kernel, logsumexp_bytes),
        (kernel, 8),
        (kernel, 8),
    ]
    gradients = [output for output in steps.outputs("backward") if "attention" in output[0]]
    assert gradients == [(f"{kernel}_backward", HEADS_BYTES)] * 3


def test_attention_in_half_precision_is_flash_attention(steps_of):
    steps = steps_of("attention", precision="amp-bf16")
    kernel = "_scaled_dot_product_flash_attention"
    outputs = [output for output in steps.outputs("forward") if output[0] == kernel]
    assert outputs[:2] == [(kernel, HEADS_BYTES // 2), (kernel, 4 * 2 * 6 * 4)]
    gradients = [output for output in steps.outputs("backward") if "attention" in output[0]]
    assert gradients == [(f"{kernel}_backward", HEADS_BYTES // 2)] * 3


def test_a_boolean_attention_mask_becomes_a_padded_float_mask(steps_of):
    outputs = steps_of("masked_attention").outputs("forward")
    assert ("constant_pad_nd", 6 * 16 * 4) in outputs  # rows of 6 padded to 16
    assert ("_scaled_dot_product_efficient_attention", HEADS_BYTES) in outputs


def test_attention_that_trains_nothing_keeps_no_logsumexp(steps_of):
    outputs = steps_of("attention", mode="infer").outputs("forward")
    sizes = [num_bytes for name, num_bytes in outputs if "attention" in name]
    assert sizes == [HEADS_BYTES, 8, 8]


@pytest.mark.parametrize(
    ("attribute", "scores_bytes"),
    [
        ("odd_attention", 4 * 2 * 6 * 6 * 4),
        pytest.param(
            "unbatched_attention", 4 * 6 * 6 * 4, marks=pytest.mark.skipif(not IS_2_13, reason="fused")
        ),
    ],
)
def test_attention_that_no_fused_kernel_takes_computes_all_scores(attribute, scores_bytes, steps_of):
    outputs = steps_of(attribute).outputs("forward")
    assert [output for output in outputs if output[1] == scores_bytes] == [
        ("bmm", scores_bytes),
        ("softmax.int", scores_bytes),
    ]


@pytest.mark.skipif(IS_2_13, reason="PyTorch 2.13 computes all scores")
def test_attention_without_a_batch_is_fused_as_if_it_had_one(steps_of):
    outputs = steps_of("unbatched_attention").outputs("forward")
    sizes = [num_bytes for name, num_bytes in outputs if "attention" in name]
    # The output; the scores' logarithms of the one sample, for 32 positions each; seed and offset.
    assert sizes == [4 * 6 * 8 * 4, 4 * 32 * 4, 8, 8]


def test_an_odd_head_size_is_padded_for_flash_attention(steps_of):
    outputs = steps_of("odd_attention", precision="amp-bf16").outputs("forward")
    padded = ("constant_pad_nd", HEADS_BYTES // 2)
    assert outputs.count(padded) == 3
    assert ("_scaled_dot_product_flash_attention", HEADS_BYTES // 2) in outputs


def test_batch_norm_saves_two_statistics_per_channel(steps_of):
    steps = steps_of("convolutional")
    map_bytes = 4 * 8 * 10 * 12 * 4
    assert [num_bytes for _, num_bytes in steps.outputs("forward", module="1")] == [map_bytes, 32, 32]
    statistics = [a for a in steps.live("step 2 backward") if a.module == "1" and a.num_bytes == 32]
    assert sum(a.num_bytes for a in statistics if a.category == "activation") == 2 * 8 * 4


def test_batch_norm_statistics_stay_float32_under_autocast(steps_of):
    steps = steps_of("convolutional", precision="amp-bf16")
    output, *statistics = steps.allocations("forward", module="1")
    assert (output.dtype, output.num_bytes) == ("bfloat16", 4 * 8 * 10 * 12 * 2)
    assert [(a.dtype, a.num_bytes) for a in statistics] == [("float32", 32), ("float32", 32)]


def convolutions(allocations):
    return [(a.module, a.convolution.conv_pass) for a in allocations if a.convolution is not None]


def test_a_convolution_needs_workspace_after_each_of_its_outputs(steps_of):
    steps = steps_of("convolutional")
    assert convolutions(steps.allocations("forward")) == [("0", ConvPass.FPROP), ("4", ConvPass.FPROP)]
    # The data of the first layer's input need no gradient.
    assert convolutions(steps.allocations("backward")) == [
        ("4", ConvPass.DGRAD),
        ("4", ConvPass.WGRAD),
        ("0", ConvPass.WGRAD),
    ]
    first_output, workspace, *_ = steps.allocations("forward")
    conv = workspace.convolution
    assert (first_output.num_bytes, workspace.num_bytes) == (4 * 8 * 10 * 12 * 4, 0)
    assert (conv.input_shape, conv.weight_shape, conv.output_shape) == (
        (4, 3, 10, 12),
        (8, 3, 3, 3),
        (4, 8, 10, 12),
    )
    assert (conv.stride, conv.padding, conv.dilation, conv.groups) == ((1, 1), (1, 1), (1, 1), 1)


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16"])
def test_a_workspace_is_given_back_before_anything_else_happens(precision, steps_of):
    """Before operands too, such as autocast's copy of the input: what is timed then finds them in use."""
    trace = steps_of("convolutional", precision=precision).trace
    workspaces = [
        position
        for position, event in enumerate(trace.events)
        if event >= 0 and trace.allocations[event].convolution is not None
    ]
    assert [trace.events[position + 1] for position in workspaces] == [
        ~trace.events[position] for position in workspaces
    ]
    assert len(workspaces) == 3 * 5


def test_inference_mode_of_the_users_own_allocates_as_without_gradients(steps_of):
    settings = {"mode": "infer", "precision": "amp-bf16"}
    own, plain = (steps_of(each, **settings).trace for each in ("inferring", "without_gradients"))
    assert own.events == plain.events
    assert [(a.operator, a.num_bytes, a.convolution) for a in own.allocations] == [
        (a.operator, a.num_bytes, a.convolution) for a in plain.allocations
    ]
    assert [a.convolution.conv_pass for a in own.allocations if a.convolution] == [ConvPass.FPROP] * 2 * 3


def test_a_transposed_convolution_is_the_data_gradient_of_the_plain_one(steps_of):
    steps = steps_of("transposed")
    forward = [a.convolution for a in steps.allocations("forward", module="1") if a.convolution is not None]
    (conv,) = forward
    assert conv.conv_pass is ConvPass.DGRAD
    assert (conv.input_shape, conv.output_shape) == ((4, 5, 18, 20), (4, 3, 8, 9))
    assert convolutions(steps.allocations("backward", module="1")) == [
        ("1", ConvPass.FPROP),
        ("1", ConvPass.WGRAD),
    ]


def test_a_loss_on_logits_allocates_the_logarithm_and_the_loss_of_every_element(steps_of):
    outputs = steps_of("binary_labels").outputs("forward")
    assert outputs[-3:] == [("log_sigmoid", HIDDEN_BYTES), ("rsub.Scalar", HIDDEN_BYTES), ("mean", 4)]


def test_indexing_with_a_list_copies_the_indices_to_the_gpu(steps_of):
    outputs = steps_of("indexing").outputs("forward")
    assert outputs[1:3] == [("_to_copy", 3 * 8), ("index.Tensor", 4 * 3 * 4)]
