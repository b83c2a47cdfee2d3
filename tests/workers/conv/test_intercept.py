"""Convolutions are rewritten wherever they are called, and nothing of a model is changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from autofit_workers.conv.intercept import rewriting, rewriting_layers
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.errors import InapplicableError


class Net(nn.Module):
    """A module's convolution, a functional one, and one by filters of one point."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding="same", padding_mode="circular")
        self.weight = nn.Parameter(torch.randn(4, 4, 4, 2))
        self.last = nn.Conv2d(4, 2, 1)

    def forward(self, image):
        hidden = functional.conv2d(self.first(image), self.weight, padding="same", dilation=(1, 2))
        return self.last(hidden.relu())


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().double()


IMAGE = torch.randn(2, 3, 9, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", ["im2col", "im2col-chunked:5", "fft", "chunked:1"])
def test_modules_and_functions_are_rewritten_alike(net, name):
    expected = net(IMAGE)
    before = set(vars(net.first)), dict(net.first._forward_pre_hooks)
    with rewriting(conv.find(name)) as mode:
        got = net(IMAGE)
    assert torch.allclose(got, expected, rtol=0, atol=1e-10)
    assert mode.rewritten == {"": 3}
    assert (set(vars(net.first)), dict(net.first._forward_pre_hooks)) == before
    assert torch.equal(net(IMAGE), expected)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_what_a_rewrite_cannot_do_runs_as_it_is_and_says_why(net):
    with rewriting(conv.find("matmul-1x1")) as mode:
        net(IMAGE)
    assert mode.rewritten == {"": 1}
    assert mode.left == {"": "its filter is 3×3, not one point"}
    with (
        pytest.raises(
            InapplicableError, match=r"fft applies to no .*torch\.fft has no transforms of bfloat16"
        ),
        rewriting(conv.find("fft")),
    ):
        torch.conv2d(
            torch.ones(1, 1, 4, 4, dtype=torch.bfloat16), torch.ones(1, 1, 2, 2, dtype=torch.bfloat16)
        )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_layers_are_rewritten_by_their_names(net):
    expected = net(IMAGE)
    chosen = {"first": conv.find("fft"), "": conv.find("im2col")}
    with rewriting_layers(chosen) as mode:
        hooks = mode.follow(net)
        got = net(IMAGE)
    for hook in hooks:
        hook.remove()
    assert torch.allclose(got, expected, rtol=0, atol=1e-10)
    assert mode.rewritten == {"first": 1, "": 1}  # the last layer has none
    assert not net.first._forward_hooks
    assert not net._forward_pre_hooks


def test_an_unbatched_image_is_rewritten():
    image, weight = torch.randn(3, 8, 8, dtype=torch.float64), torch.randn(2, 3, 3, 3, dtype=torch.float64)
    expected = torch.conv2d(image, weight)
    with rewriting(conv.find("im2col")) as mode:
        got = torch.conv2d(image, weight)
    assert torch.allclose(got, expected, rtol=0, atol=1e-10)
    assert mode.rewritten


def test_errors_are_pytorch_s_own():
    image, weight = torch.ones(1, 3, 4, 4), torch.ones(2, 2, 3, 3)
    with (
        pytest.raises(RuntimeError, match=r"expected input.* to have 2 channels"),
        rewriting(conv.find("im2col")),
    ):
        torch.conv2d(image, weight)


def test_autocast_casts_as_it_does_for_a_convolution():
    image, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = torch.conv2d(image, weight)
        with rewriting(conv.find("im2col")):
            got = torch.conv2d(image, weight)
    assert got.dtype == expected.dtype == torch.bfloat16
    assert torch.allclose(got, expected, rtol=0.02, atol=0.02)
