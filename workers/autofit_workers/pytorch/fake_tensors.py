"""Tensors without memory, which stand for those of a GPU that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,  # raised for an operator whose result depends on values
    DynamicOutputShapeException,  # raised for an operator whose result's shape depends on values
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,  # raised for an operator without a fake implementation
    in_kernel_invocation_manager,  # context in which fake tensors are those of the device `meta`
)
from torch._subclasses.functional_tensor import FunctionalTensor  # a wrapper that holds no memory of its own

from autofit_workers.pytorch.private_name import PrivateName

__all__ = [
    "INIT_GPU_CONTEXT",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "FunctionalTensor",
    "UnsupportedOperatorException",
    "disable_fake_tensor_cache",
    "in_kernel_invocation_manager",
    "only_lift_cpu_tensors",
    "throw_on_mutable_data_ptr",
    "warn_on_mutable_data_ptr",
]

# Creates a CUDA context for the first fake tensor of a GPU; replaced, as no context is wanted.
INIT_GPU_CONTEXT = PrivateName(fake_tensor, "init_gpu_context")
# Makes `torch.tensor` pass its new tensor through the mode, before it moves the tensor to a device.
only_lift_cpu_tensors = torch._C._set_only_lift_cpu_tensors
# What `data_ptr` of a fake tensor does: raise, or warn that this is deprecated.
throw_on_mutable_data_ptr = torch._C._set_throw_on_mutable_data_ptr
warn_on_mutable_data_ptr = torch._C._set_warn_deprecated_on_mutable_data_ptr


@contextmanager
def disable_fake_tensor_cache(mode: FakeTensorMode) -> Iterator[None]:
    """Context in which operators' fake implementations always run, without the cache of PyTorch 2.8 on."""
    before = mode.cache_enabled
    mode.cache_enabled = False
    try:
        yield
    finally:
        mode.cache_enabled = before
