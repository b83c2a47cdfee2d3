"""Workspace of a convolution by backend policy: memory besides the output that no operator shows.

The module knows which convolutions PyTorch gives to cuDNN, and which of cuDNN's plans it takes under each
policy; the plans themselves come from a `PlanSource`. PyTorch's own kernels need im2col columns or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.spans import NO_WORKSPACE, Workspace, certain
from autofit_workers.spec.conv_algorithms.policy import ConvPolicy
from autofit_workers.spec.work import Convolution

MOST_ELEMENTS = 2**31 - 2  # `canUse32BitIndexMath` requires fewer than 2^31 - 1
_MOST_AT_ONCE = 2**31  # elements of a convolution's larger tensor: see `samples_at_once`
# Since this release cuDNN takes the depthwise calls that PyTorch's own kernel cannot index
# (pytorch/pytorch#156140), but in channels last not with the cuDNN 9.10 that these releases bring
# (pytorch/pytorch#163171).
_LARGE_DEPTHWISE_SINCE = (2, 9)
_NO_LARGE_CHANNELS_LAST_IN = ((2, 9), (2, 10))
# Least channels and width of a depthwise convolution in half precision for cuDNN: `_depthwise_goes_to_cudnn`.
_MIN_DEPTHWISE_CHANNELS, _MIN_DEPTHWISE_WIDTH = 32, 7


def workspace(
    call: Convolution,
    plans: Sequence[Plan],
    policy: ConvPolicy,
    *,
    allow_tf32: bool = True,
    knows_the_order: bool = True,
) -> Workspace:
    """Workspace, as a range from low to worst, of one convolution that PyTorch runs with cuDNN.

    `run_single_conv` of Conv_v8.cpp takes the first plan that fits; the low end is the smallest
    plan, which it falls back to when memory is short. In benchmark mode, at the first run of a call, it
    allocates the largest workspace among all plans (`generate_and_filter_plans`), to time them in it; then it
    releases all cached memory, and from then on it takes the fastest plan
    (`benchmark_cache`), likely the first.

    Args:
        call: the convolution.
        plans: ways in which cuDNN can compute the call, in the order in which PyTorch tries them.
        policy: switches of `torch.backends.cudnn`, and a cap on workspaces.
        allow_tf32: whether fp32 convolutions may use tensor cores, PyTorch's default.
        knows_the_order: whether the order is known; PyTorch then takes the first plan. If not, the high end
            is the largest plan.
    """
    needs_ieee = call.dtype == "float32" and not allow_tf32
    sizes = [
        plan.workspace_bytes
        for plan in plans
        if not (needs_ieee and plan.uses_tensor_cores) and (plan.is_deterministic or not policy.deterministic)
    ] or [plan.workspace_bytes for plan in plans]
    needed = _taken(sizes, policy, knows_the_order=knows_the_order)
    if policy.workspace_cap_bytes is None:
        return needed
    within = [size for size in sizes if size <= policy.workspace_cap_bytes] or [min(sizes)]
    capped = _taken(within, policy, knows_the_order=knows_the_order)
    # cuDNN documents a cap for its older interface only; whether plans keep to it is unknown
    # (`cudnn_capped`).
    return needed._replace(low_bytes=capped.low_bytes, likely_bytes=capped.likely_bytes)


def _taken(sizes: Sequence[int], policy: ConvPolicy, *, knows_the_order: bool) -> Workspace:
    """Workspace, as a range from low to worst, of a convolution with plans of given sizes.

    Args:
        sizes: workspace bytes of the plans, in the order in which PyTorch tries them.
        policy: switches of `torch.backends.cudnn`; only benchmark mode matters here.
        knows_the_order: whether the order is known; PyTorch then takes the first plan.
    """
    if policy.benchmark:
        largest_first = tuple(sorted(set(sizes), reverse=True))
        largest_bytes = largest_first[0]
        return Workspace(
            sizes[0], largest_bytes, largest_bytes, largest_bytes, largest_first, repeated_bytes=sizes[0]
        )
    high_bytes = sizes[0] if knows_the_order else max(sizes)
    return Workspace(min(sizes), sizes[0], high_bytes, max(sizes), tuple(dict.fromkeys(sizes)))


def samples_at_once(call: Convolution) -> int:
    """Number of samples that cuDNN runs in one piece: it splits a batch into pieces of up to 2^31 elements.

    A plan's workspace is for one piece: queried without a GPU, cuDNN 9.8, 9.10 and 9.20 need no more for any
    larger batch (but for 0.02 % that some kernels take for each piece), in float32 and float16, in all passes
    and both layouts, on compute capabilities 8.0, 8.6, 9.0 and 12.0.
    """
    elements_of_one = max(math.prod(call.input_shape[1:]), math.prod(call.output_shape[1:]))
    return max(_MOST_AT_ONCE // max(elements_of_one, 1), 1)


def at_once(call: Convolution) -> Convolution:
    """Convolution of the samples that cuDNN runs in one piece; its workspace is that of the whole call."""
    if max(math.prod(call.input_shape), math.prod(call.output_shape)) <= _MOST_AT_ONCE:
        return call
    most_samples = samples_at_once(call)
    return call if call.input_shape[0] <= most_samples else call.of_samples(most_samples)


def native_workspace(call: Convolution) -> Workspace:
    """Workspace of a convolution by PyTorch's own kernels: im2col columns of one sample at a time.

    0 bytes for depthwise convolutions, which have a direct kernel, and for 1×1 convolutions without stride or
    padding, which multiply the input as it is. Source: `slow_conv2d` and `slow_conv_dilated` of ATen.
    """
    pointwise = math.prod(call.weight_shape[2:]) == 1 and set(call.stride) == {1} and set(call.padding) == {0}
    if is_depthwise(call) or pointwise:
        return NO_WORKSPACE
    columns = call.element_bytes * (call.input_shape[1] // call.groups) * math.prod(call.weight_shape[2:])
    return certain(columns * math.prod(call.output_shape[2:]))


def is_depthwise(call: Convolution) -> bool:
    """Whether a call convolves each channel by itself (`ConvParams::is_depthwise` of Convolution.cpp)."""
    return call.groups == call.input_shape[1] > 1


def goes_to_cudnn(call: Convolution, capability: int, torch_release: tuple[int, int]) -> bool:
    """Whether PyTorch, with cuDNN enabled, runs a convolution by cuDNN instead of its own kernels.

    `use_cudnn` of Convolution.cpp: cuDNN has bfloat16 from compute capability 8.0 on.

    Args:
        call: the convolution.
        capability: compute capability of the card, as 10 × major + minor.
        torch_release: major and minor version of PyTorch.
    """
    if call.dtype == "bfloat16" and capability < 80:
        return False
    if not is_depthwise(call):
        return True
    if torch_release >= _LARGE_DEPTHWISE_SINCE and math.prod(call.input_shape) > MOST_ELEMENTS:
        return not (call.channels_last and torch_release in _NO_LARGE_CHANNELS_LAST_IN)
    return _depthwise_goes_to_cudnn(call)


def _depthwise_goes_to_cudnn(call: Convolution) -> bool:
    """Whether PyTorch runs a depthwise convolution by cuDNN.

    Always in channels last; else only some 1-D and 2-D ones in float16 (`use_cudnn_depthwise` of
    Convolution.cpp).
    """
    if call.channels_last:
        return True
    channels, width = call.input_shape[1], call.input_shape[-1]
    if (
        call.dtype != "float16"
        or len(call.stride) > 2
        or set(call.dilation) != {1}
        or len(set(call.stride)) != 1
        or channels < _MIN_DEPTHWISE_CHANNELS
    ):
        return False
    if len(call.stride) == 1:
        return call.stride == (1,)
    is_small_square = len(set(call.weight_shape[2:])) == 1 and call.weight_shape[-1] in (1, 3, 5)
    return is_small_square and width >= _MIN_DEPTHWISE_WIDTH and _is_faster_in_cudnn(call)


def _is_faster_in_cudnn(call: Convolution) -> bool:
    """Whether PyTorch expects cuDNN to be faster at a depthwise call, by stride, size and channels.

    `check_cudnn_depthwise_workload_with_filter` of Convolution.cpp.
    """
    (num_samples, channels), width = call.input_shape[:2], call.input_shape[-1]
    filter_width = call.weight_shape[-1]
    if call.stride[-1] != 2:
        return call.stride[-1] == 1
    if num_samples == 1:
        return filter_width > 1 or width <= 28
    if filter_width == 1:
        return num_samples <= 16 and channels >= 128 and width <= 7
    return channels >= 512 or (channels >= 256 and width >= 28)
