"""Every rewrite gives what PyTorch's own convolution gives, forward and in both gradients."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit_workers.conv.intercept import rewriting
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.conv_algorithms import Rewrite

CONVOLUTIONS = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
REWRITES = ("im2col", "im2col-chunked:1", "im2col-chunked:7", "im2col-chunked:4096", "fft", "chunked:2")
TOLERANCES = {torch.float32: 1e-4, torch.float64: 1e-10}


@st.composite
def calls(draw, *, of_one_point: bool = False):
    """Shapes and options of a convolution that PyTorch runs, with outputs that see some of the input."""
    num_dimensions = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, outputs = (groups * draw(st.integers(1, 3)) for _ in range(2))

    def numbers(first, last):
        return tuple(draw(st.integers(first, last)) for _ in range(num_dimensions))

    filters = (1,) * num_dimensions if of_one_point else numbers(1, 4 if num_dimensions < 3 else 3)
    stride, padding, dilation = numbers(1, 3), numbers(0, 3), numbers(1, 3)
    extents = [d * (size - 1) + 1 for size, d in zip(filters, dilation, strict=True)]
    # At least as wide as the filter, so that some output sees nothing but the input.
    sizes = [extent + more for extent, more in zip(extents, numbers(0, 9), strict=True)]
    return {
        "input": (draw(st.integers(1, 4)), channels, *sizes),
        "weight": (outputs, channels // groups, *filters),
        "options": {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups},
    }


def passes(call, dtype):
    """The output and the gradients of input, weight and bias."""
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(shape, dtype=dtype, generator=generator).requires_grad_()
        for shape in (call["input"], call["weight"], call["weight"][:1])
    ]
    output = CONVOLUTIONS[len(call["input"]) - 2](*tensors, **call["options"])
    grad = torch.randn(output.shape, dtype=dtype, generator=generator)
    return (output.detach(), *torch.autograd.grad(output, tensors, grad))


def assert_equal(call, name, dtype):
    rewrite = conv.find(name)
    assert isinstance(rewrite, Rewrite)
    expected = passes(call, dtype)
    with rewriting(rewrite) as mode:
        got = passes(call, dtype)
    assert sum(mode.rewritten.values()) == 1
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= TOLERANCES[dtype] * max(float(theirs.abs().max()), 1.0)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", REWRITES)
@given(call=calls())
@settings(max_examples=40)
def test_a_rewrite_is_the_convolution(name, dtype, call):
    assert_equal(call, name, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@given(call=calls(of_one_point=True))
@settings(max_examples=40)
def test_filters_of_one_point_are_a_product_of_matrices(dtype, call):
    assert_equal(call, "matmul-1x1", dtype)


@pytest.mark.parametrize("sizes", [(1300,), (700, 40), (530, 1100)])
def test_fft_tiles_large_images(sizes):
    call = {
        "input": (2, 2, *sizes),
        "weight": (3, 2, *(5,) * len(sizes)),
        "options": {"stride": (2,) * len(sizes), "padding": (2,) * len(sizes)},
    }
    assert_equal(call, "fft", torch.float64)


@pytest.mark.parametrize("name", ["im2col", "im2col-chunked:64", "chunked:2", "matmul-1x1"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rewritten_too(name, dtype):
    image, weight = torch.ones(3, 4, 6, 6, dtype=dtype), torch.ones(5, 4, 1, 1, dtype=dtype)
    with rewriting(conv.find(name)) as mode:
        output = torch.conv2d(image, weight)
    assert output.dtype == dtype
    assert torch.equal(output, torch.full_like(output, 4.0))
    assert mode.rewritten


def test_a_135_by_135_filter_is_exact_by_spectra_within_float32():
    generator = torch.Generator().manual_seed(0)
    image, weight = (
        torch.randn(shape, generator=generator) for shape in ((1, 1, 160, 170), (3, 1, 135, 135))
    )
    expected = torch.conv2d(image.double(), weight.double())
    with rewriting(conv.find("fft")):
        got = torch.conv2d(image, weight)
    assert (got.double() - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert math.prod(got.shape) == 3 * 26 * 36
