"""Workspaces of single convolutions, worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from workers.predict.workspace import Workspace, workspace
from workers.protocol import CONV_ALGOS
from workers.trace import Convolution, ConvPass

# The second layer of VGG-16 at batch 2: 64 maps of 224×224 in and out, 3×3 filters.
VGG = Convolution(
    conv_pass=ConvPass.FPROP,
    input_shape=(2, 64, 224, 224),
    weight_shape=(64, 64, 3, 3),
    output_shape=(2, 64, 224, 224),
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
    groups=1,
    dtype="float32",
    element_bytes=4,
)
MAPS_BYTES = 2 * 64 * 224 * 224 * 4
# F(4×4, 3×3) cuts 56×56 tiles of 36 transformed elements from either side, and transforms the filters.
WINOGRAD_BYTES = 4 * 36 * (2 * 64 * 56 * 56 + 2 * 64 * 56 * 56 + 64 * 64)
# Half the columns of a spectrum of the padded image, 8 bytes each, for input, filters and output.
FFT_BYTES = 8 * 226 * (226 // 2 + 1) * (2 * 64 + 64 * 64 + 2 * 64)


def variant(**changes) -> Convolution:
    return dataclasses.replace(VGG, **changes)


POINTWISE = variant(weight_shape=(64, 64, 1, 1), padding=(0, 0))
GROUPED = variant(weight_shape=(64, 2, 3, 3), groups=32)
DEPTHWISE = variant(weight_shape=(64, 1, 3, 3), groups=64)


def test_a_tensor_core_plan_copies_the_maps_it_writes_and_at_most_needs_winograds_buffers():
    assert workspace(VGG, "cudnn", "sm_80") == Workspace(0, MAPS_BYTES, WINOGRAD_BYTES)
    assert WINOGRAD_BYTES > 2 * MAPS_BYTES


@pytest.mark.parametrize("conv_pass", [ConvPass.DGRAD, ConvPass.WGRAD])
def test_a_gradient_copies_what_it_reads_too(conv_pass):
    assert workspace(variant(conv_pass=conv_pass), "cudnn", "sm_80").likely_bytes == 2 * MAPS_BYTES


def test_so_does_the_output_from_hopper_on():
    assert workspace(VGG, "cudnn", "sm_90").likely_bytes == 2 * MAPS_BYTES


def test_maps_that_are_channels_last_already_need_no_copy():
    assert workspace(variant(channels_last=True), "cudnn", "sm_80").likely_bytes == 0


@pytest.mark.parametrize(
    ("architecture", "dtype", "has_tensor_cores"),
    [
        ("sm_61", "float32", False),
        ("sm_75", "float32", False),
        ("sm_75", "bfloat16", False),
        ("sm_70", "float16", True),
        ("sm_80", "float32", True),
        ("sm_86", "bfloat16", True),
        ("sm_100", "float32", True),
    ],
)
def test_without_tensor_cores_no_plan_needs_a_workspace(architecture, dtype, has_tensor_cores):
    needed = workspace(variant(dtype=dtype), "cudnn", architecture)
    assert (needed.high_bytes > 0) == has_tensor_cores


@pytest.mark.parametrize("conv", [POINTWISE, GROUPED, DEPTHWISE], ids=["pointwise", "grouped", "depthwise"])
@pytest.mark.parametrize("conv_algo", ["cudnn", "cudnn-deterministic", "cudnn-benchmark"])
def test_pointwise_and_grouped_convolutions_need_none(conv, conv_algo):
    assert workspace(conv, conv_algo, "sm_80") == Workspace(0, 0, 0)


def test_winograd_is_for_small_dense_filters_without_stride():
    for conv in (variant(stride=(2, 2)), variant(dilation=(2, 2)), variant(weight_shape=(64, 64, 5, 5))):
        assert workspace(conv, "cudnn", "sm_80").high_bytes == 2 * MAPS_BYTES


def test_benchmarking_allocates_the_largest_of_the_candidates():
    needed = workspace(VGG, "cudnn-benchmark", "sm_80")
    assert needed.low_bytes == MAPS_BYTES
    assert needed.likely_bytes == WINOGRAD_BYTES
    assert needed.high_bytes == max(WINOGRAD_BYTES, FFT_BYTES) == FFT_BYTES


def test_a_padded_image_beyond_256_has_no_fft():
    large = variant(input_shape=(2, 64, 255, 255), output_shape=(2, 64, 255, 255))
    needed = workspace(large, "cudnn-benchmark", "sm_80")
    assert needed.high_bytes == 4 * 36 * (2 * (2 * 64 * 64 * 64) + 64 * 64)


def test_native_convolutions_unfold_one_sample_at_a_time():
    columns_bytes = 4 * (64 * 9) * (224 * 224)
    assert workspace(VGG, "native", "sm_80") == Workspace(columns_bytes, columns_bytes, columns_bytes)
    many = variant(input_shape=(500, 64, 224, 224), output_shape=(500, 64, 224, 224))
    assert workspace(many, "native", "sm_80") == workspace(VGG, "native", "sm_80")


def test_native_convolutions_unfold_the_channels_of_one_group():
    assert workspace(GROUPED, "native", "sm_80").likely_bytes == 4 * (2 * 9) * (224 * 224)


@pytest.mark.parametrize("conv", [POINTWISE, DEPTHWISE], ids=["pointwise", "depthwise"])
def test_native_convolutions_of_one_pixel_or_one_channel_unfold_nothing(conv):
    assert workspace(conv, "native", "sm_80") == Workspace(0, 0, 0)


@pytest.mark.parametrize("conv_algo", CONV_ALGOS)
@pytest.mark.parametrize("conv", [VGG, POINTWISE, GROUPED, DEPTHWISE, variant(stride=(2, 2))])
def test_the_likely_workspace_lies_between_low_and_high(conv, conv_algo):
    for conv_pass in ConvPass:
        for architecture in ("sm_61", "sm_75", "sm_80", "sm_90"):
            needed = workspace(dataclasses.replace(conv, conv_pass=conv_pass), conv_algo, architecture)
            assert 0 <= needed.low_bytes <= needed.likely_bytes <= needed.high_bytes
