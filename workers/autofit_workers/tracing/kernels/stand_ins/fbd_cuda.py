"""Stand-in for `fbd_cuda`, the extension by which peft's BOFT puts small blocks on a diagonal.

The stand-in allocates what peft/tuners/boft/fbd/fbd_cuda_kernel.cu of release 0.21 does; its kernels need no
scratch memory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from autofit_workers.tracing.kernels import extensions

__all__ = ["backward", "forward"]


def forward(blocks: Tensor) -> list[Tensor]:
    """Matrices with the blocks on their diagonals, of shape (count, blocks x size, blocks x size)."""
    extensions.use("fbd_cuda")
    count, num_blocks, size, _ = blocks.shape
    return [blocks.new_zeros((count, num_blocks * size, num_blocks * size))]


def backward(grad_output: Tensor, blocks: Tensor) -> list[Tensor]:  # noqa: ARG001 - the extension's signature
    """Gradient of the blocks."""
    return [torch.zeros_like(blocks)]
