"""Declares torchvision's compiled operators where they cannot be loaded.

Its wheels are built beside PyTorch for CUDA; beside one for the CPU their library does not load. A prediction
needs no kernels: names and derivatives stand here, shapes are torchvision's own. Source: `csrc/ops` of
torchvision 0.28.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workers.errors import DeviceError

_SCHEMAS = (
    "_cuda_version() -> int",
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, "
    "int rois_zero_point, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "_roi_align_backward(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width) -> Tensor",
    "ps_roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio) -> (Tensor, Tensor)",
    "_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    "SymInt pooled_height, SymInt pooled_width, int sampling_ratio, SymInt batch_size, SymInt channels, "
    "SymInt height, SymInt width) -> Tensor",
    "ps_roi_pool(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width) "
    "-> (Tensor, Tensor)",
    "_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    "SymInt pooled_height, SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, "
    "SymInt width) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, "
    "SymInt offset_groups, bool use_mask) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, "
    "Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, "
    "SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_c: Any = torch._C
_below_autograd = _c._AutoDispatchBelowAutograd
_declared: list[torch.library.Library] = []


def declare() -> None:
    """Declares the operators, for the life of this process."""
    if _declared:
        return
    make: Any = torch.library.Library
    library = make("torchvision", "DEF")
    _declared.append(library)
    for schema in _SCHEMAS:
        name = library.define(schema)
        library.impl(name, _without_cuda if name == "_cuda_version" else _refuse, _kernel_of(name))
    for name in ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool"):
        library.impl(name, _pooled(name), "Autograd")
        library.impl(name, _in_single_precision(name), "AutocastCUDA")
    library.impl("deform_conv2d", _convolved, "Autograd")
    for name in ("deform_conv2d", "nms"):
        library.impl(name, _in_single_precision(name), "AutocastCUDA")


def _kernel_of(name: str) -> str:
    return "CompositeImplicitAutograd" if name == "_cuda_version" else "CPU"


def _without_cuda() -> int:
    return -1


def _refuse(*_args: Any) -> None:
    raise DeviceError(
        "torchvision's compiled operators cannot be loaded beside this PyTorch: install both from one index, "
        "such as https://download.pytorch.org/whl/cpu"
    )


def _pooled(name: str) -> Any:
    """`autograd/*_kernel.cpp`: they keep the regions and, but for `roi_align`, what came from where."""

    class Pooled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, input: Tensor, rois: Tensor, *sizes: Any) -> Any:  # noqa: A002
            with _below_autograd():
                result = getattr(torch.ops.torchvision, name)(input, rois, *sizes)
            kept = () if isinstance(result, Tensor) else result[1:]
            ctx.save_for_backward(rois, *kept)
            ctx.mark_non_differentiable(*kept)
            ctx.sizes, ctx.shape = sizes, tuple(input.shape)
            return result if isinstance(result, Tensor) else tuple(result)

        @staticmethod
        def backward(ctx: Any, grad: Tensor, *_others: Any) -> Any:
            backward = getattr(torch.ops.torchvision, f"_{name}_backward")
            scale, height, width, *rest = ctx.sizes
            # `roi_align` alone has its number of samples behind the shape of its input.
            sizes = (
                (scale, height, width, *ctx.shape, *rest)
                if name == "roi_align"
                else (scale, height, width, *rest, *ctx.shape)
            )
            return backward(grad, *ctx.saved_tensors, *sizes), None, *(None for _ in ctx.sizes)

    return Pooled.apply


class _Convolved(torch.autograd.Function):
    """`autograd/deform_conv2d_kernel.cpp`."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        ctx.save_for_backward(*args[:5])
        ctx.sizes = args[5:]
        with _below_autograd():
            return torch.ops.torchvision.deform_conv2d(*args)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        grads = torch.ops.torchvision._deform_conv2d_backward(grad, *ctx.saved_tensors, *ctx.sizes)
        return *grads, *(None for _ in ctx.sizes)


_convolved = _Convolved.apply


def _in_single_precision(name: str) -> Any:
    """`autocast/*_kernel.cpp`: computed in single precision, given back in the input's."""

    def computed(input: Tensor, *args: Any) -> Any:  # noqa: A002
        wide = [each.float() if isinstance(each, Tensor) else each for each in args]
        with torch.autocast("cuda", enabled=False):
            result = getattr(torch.ops.torchvision, name)(input.float(), *wide)
        if name == "nms":
            return result
        if isinstance(result, Tensor):
            return result.to(input.dtype)
        return tuple(each.to(input.dtype) for each in result)

    return computed
