"""Optimizers, the gradient scaler and initializers."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer
from torch.utils import _foreach_utils

from autofit_workers.pytorch.private_name import PrivateName

__all__ = ["FOREACH_DEVICES", "FOREACH_TYPES", "OPTIMIZER_STEP_OF_SCALER", "TRUNCATED_NORMAL"]

# Classes of tensors that optimizers and gradient clipping take by foreach kernels; both lists grow.
FOREACH_TYPES: tuple[list[Any], ...] = (
    optimizer._foreach_supported_types,
    _foreach_utils._foreach_supported_types,
)
# Function that names the devices with foreach kernels.
FOREACH_DEVICES = PrivateName(_foreach_utils, "_get_foreach_kernels_supported_devices")
# Steps an optimizer unless a gradient is infinite, which reads a value of the GPU.
OPTIMIZER_STEP_OF_SCALER = PrivateName(torch.amp.GradScaler, "_maybe_opt_step")
# Body of `torch.nn.init.trunc_normal_`, which draws again what lies outside of its bounds.
TRUNCATED_NORMAL = PrivateName(torch.nn.init, "_no_grad_trunc_normal_")
