"""The device that the driver has, and the history of the allocator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.pytorch.private_name import PrivateName

__all__ = [
    "CURRENT_ACCELERATOR",
    "EXCHANGE_DEVICE",
    "KERNEL_COMPILER",
    "MEMORY_HISTORY",
    "MEMORY_SNAPSHOT",
    "memory_snapshot",
    "record_memory_history",
]

# Functions that set the device and return the one before.
EXCHANGE_DEVICE = (
    PrivateName(torch.cuda, "_exchange_device"),
    PrivateName(torch.cuda, "_maybe_exchange_device"),
    PrivateName(torch._C, "_accelerator_exchangeDevice"),
    PrivateName(torch._C, "_accelerator_maybeExchangeDevice"),
)
# Functions that return the device of the accelerator that is there.
CURRENT_ACCELERATOR = (
    PrivateName(torch._C, "_accelerator_getAccelerator"),
    PrivateName(torch._C, "_get_accelerator"),
)
# Compiles the source of a CUDA kernel; since 2.9.
KERNEL_COMPILER = (
    PrivateName(torch.cuda, "_compile_kernel") if hasattr(torch.cuda, "_compile_kernel") else None
)
# Records each event of the caching allocator, and returns them with its segments.
record_memory_history: Callable[..., None] = torch.cuda.memory._record_memory_history
memory_snapshot: Callable[[], dict[str, Any]] = torch.cuda.memory._snapshot
# The same two, as scripts call them.
MEMORY_HISTORY = PrivateName(torch.cuda.memory, "_record_memory_history")
MEMORY_SNAPSHOT = PrivateName(torch.cuda.memory, "_snapshot")
