"""CUDA managed memory, whose pages move between card and host, as bitsandbytes' paged optimizers use it.

bitsandbytes' paged optimizers allocate states of 100,000 and more elements by `cudaMallocManaged`, outside
PyTorch's allocator (`get_state_buffer` of optim/optimizer.py). All of this memory is on the card if there is
room; else the driver moves pages to the host. So its size on the card is predicted as a span from nothing,
which PyTorch's counters would show as well, to all of it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from autofit_workers.replay.spans import between
from autofit_workers.spec.trace import MANAGED_MEMORY
from autofit_workers.tracing.fake.devices import GPU
from autofit_workers.tracing.fake.library_memory import library_memory


def replace_in_bitsandbytes(functional: Any) -> None:
    """Replaces the functions of `bitsandbytes.functional` that call CUDA's driver."""
    functional.get_paged = _paged
    functional.fill = functional.prefetch_tensor = _nothing


def _paged(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device = GPU) -> torch.Tensor:
    """Tensor without data for an optimizer state in CUDA managed memory, as paged optimizers use.

    The driver moves its pages between host and GPU, so it counts 0 bytes of GPU memory at least, its whole
    size at most.
    """
    made: Any = torch.empty(shape, dtype=dtype, device="meta")
    made.is_paged, made.page_deviceid = True, device.index
    num_bytes = math.prod(shape) * dtype.itemsize
    made.pages = library_memory(between(0, 0, num_bytes), MANAGED_MEMORY, kept=True)
    tensor: torch.Tensor = made
    return tensor


def _nothing(*_args: object, **_options: object) -> None:
    return None
