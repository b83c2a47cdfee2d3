"""Memory that a library asks PyTorch for inside an operator, as an operator of its own in the trace.

Functions that repeat an operator's allocations (`recurrent`) take it with `library_memory`; it
lives as long as the tensor that is returned, and the recorder knows it by `LIBRARY_MEMORY`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workers.predict.devices import GPU

_LIBRARY = torch.library.Library("autofit", "DEF")
_LIBRARY.define("library_memory(int num_bytes, str operator, bool kept, *, Device device) -> Tensor")


def _library_memory(
    num_bytes: int,
    operator: str,  # noqa: ARG001 - for the recorder
    kept: bool,  # noqa: ARG001 - likewise
    *,
    device: torch.device,
) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, device=device)


_LIBRARY.impl("library_memory", _library_memory, "CompositeExplicitAutograd")
LIBRARY_MEMORY: Any = torch.ops.autofit.library_memory.default


def library_memory(num_bytes: int, operator: str, *, kept: bool = False) -> Tensor:
    """So many bytes on the fake GPU.

    Args:
        operator: the ATen operator that takes them, such as `aten._cudnn_rnn`.
        kept: they are kept for backward, as activations are, and not workspace.
    """
    taken: Tensor = LIBRARY_MEMORY(num_bytes, operator, kept, device=GPU)
    return taken
