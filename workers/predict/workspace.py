"""What a convolution needs beside its output, by algorithm; no operator shows it.

Formulas, until cuDNN itself is asked. Planned by cuDNN 9.27 for a VGG layer (64→64 channels, 3×3,
batch 128, fp32 storage), the first plan of an A100 needs one copy of a feature map forward and two
backward, that of an H200 two each, that of a T4 none, and none does without tensor cores. They are
NHWC copies of what a tensor-core kernel reads and writes, for it wants channels last: the likely
workspace. Deep stacks of 3×3 layers were measured to need more (VGG-16 in GPUMemNet's table),
about what the buffers of non-fused Winograd come to: the high end. Grouped and 1×1 convolutions
were seen to need far less in real runs than their first plan: taken as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.trace import Convolution, ConvPass

_FFT_MAX_SIDE = 256


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes beside the output: what the policy may get by with, likely takes, and may take."""

    low_bytes: int
    likely_bytes: int
    high_bytes: int


def workspace(convolution: Convolution, conv_algo: str, architecture: str) -> Workspace:
    """Estimates the workspace of one convolution call.

    Args:
        convolution: the call.
        conv_algo: a backend policy of `workers.protocol.CONV_ALGOS`.
        architecture: `sm_XY` of the card.
    """
    return _POLICIES[conv_algo](convolution, int(architecture.removeprefix("sm_")))


def worst_workspace_bytes(convolution: Convolution, conv_algo: str, architecture: str) -> int:
    """The largest workspace that any plan of a convolution call may want.

    Which plan cuDNN's heuristics take depends on its version; benchmark mode times all of them, so
    what it asks for bounds what any cuDNN policy comes to. PyTorch's own kernels have one plan.
    """
    policies = {conv_algo} if conv_algo == "native" else {conv_algo, "cudnn-benchmark"}
    return max(workspace(convolution, policy, architecture).high_bytes for policy in policies)


def _heuristic(conv: Convolution, capability: int) -> Workspace:
    """The first plan that cuDNN offers; near the limit PyTorch takes a later one that needs less."""
    if not _is_dense(conv) or not _uses_tensor_cores(conv, capability):
        return Workspace(0, 0, 0)
    both = 0 if conv.channels_last else _input_bytes(conv) + _output_bytes(conv)
    one_copy = conv.conv_pass is ConvPass.FPROP and capability < 90
    likely = min(both, _output_bytes(conv)) if one_copy else both
    return Workspace(0, likely, max(both, _winograd_bytes(conv)))


def _benchmark(conv: Convolution, capability: int) -> Workspace:
    """Timing the plans takes one allocation of the largest workspace among them."""
    heuristic = _heuristic(conv, capability)
    if not _is_dense(conv):
        return heuristic
    likely = max(heuristic.high_bytes, _winograd_bytes(conv))
    return Workspace(heuristic.likely_bytes, likely, max(likely, _fft_bytes(conv)))


def _native(conv: Convolution, _capability: int) -> Workspace:
    """PyTorch's own kernels: im2col columns of one sample at a time, freed after the call.

    Source: `slow_conv2d` and `slow_conv_dilated` of ATen; depthwise convolutions have a direct
    kernel, and 1×1 convolutions without stride or padding multiply the input as it is.
    """
    channels, depthwise = conv.input_shape[1], conv.groups == conv.input_shape[1] > 1
    pointwise = _filter_elements(conv) == 1 and set(conv.stride) == {1} and set(conv.padding) == {0}
    if depthwise or pointwise:
        return Workspace(0, 0, 0)
    columns = conv.element_bytes * (channels // conv.groups) * _filter_elements(conv)
    num_bytes = columns * math.prod(conv.output_shape[2:])
    return Workspace(num_bytes, num_bytes, num_bytes)


_POLICIES: dict[str, Callable[[Convolution, int], Workspace]] = {
    "cudnn": _heuristic,
    # Dropping the plans that are not reproducible leaves first plans of the same kind.
    "cudnn-deterministic": _heuristic,
    "cudnn-benchmark": _benchmark,
    "native": _native,
}


def _is_dense(conv: Convolution) -> bool:
    return conv.groups == 1 and _filter_elements(conv) > 1


def _uses_tensor_cores(conv: Convolution, capability: int) -> bool:
    """TF32 came with sm_80, half precision with sm_70, bfloat16 with sm_80."""
    return capability >= 80 or (capability >= 70 and conv.dtype == "float16")


def _filter_elements(conv: Convolution) -> int:
    return math.prod(conv.weight_shape[2:])


def _input_bytes(conv: Convolution) -> int:
    return math.prod(conv.input_shape) * conv.element_bytes


def _output_bytes(conv: Convolution) -> int:
    return math.prod(conv.output_shape) * conv.element_bytes


def _winograd_bytes(conv: Convolution) -> int:
    """Non-fused Winograd F(4×4, 3×3): a²·(N·C·t + N·K·t + K·C) elements, a = 4 + 3 − 1.

    Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016.
    """
    if conv.weight_shape[2:] != (3, 3) or set(conv.stride) != {1} or set(conv.dilation) != {1}:
        return 0
    (n, c), (k, p, q) = conv.input_shape[:2], conv.output_shape[1:]
    tiles = -(-p // 4) * -(-q // 4)
    return conv.element_bytes * 36 * (n * c * tiles + n * k * tiles + k * c)


def _fft_bytes(conv: Convolution) -> int:
    """Spectra of input, filter and output: 8·H·(W/2 + 1) bytes per map for 2-D images.

    Source: Mathieu, Henaff and LeCun, Fast Training of Convolutional Networks through FFTs, 2014.
    cuDNN offers it for stride 1 and padded images of up to 256×256 (cudnnConvolutionFwdAlgo_t).
    """
    if len(conv.input_shape) != 4 or set(conv.stride) != {1} or set(conv.dilation) != {1}:
        return 0
    n, c, height, width = conv.input_shape
    k = conv.output_shape[1]
    padded = (height + 2 * conv.padding[0], width + 2 * conv.padding[1])
    if max(padded) > _FFT_MAX_SIDE:
        return 0
    return 8 * padded[0] * (padded[1] // 2 + 1) * (n * c + k * c + n * k)
