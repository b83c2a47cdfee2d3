"""Operator `autofit::library_memory`: memory that a library takes from PyTorch inside another operator.

Functions that repeat an operator's allocations (`recurrent`) take it with `library_memory`; it
lives as long as the tensor that is returned, and the recorder knows it by `LIBRARY_MEMORY`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autofit_workers.replay.spans import Workspace
from autofit_workers.tracing.fake.devices import GPU

_LIBRARY = torch.library.Library("autofit", "DEF")
_LIBRARY.define("library_memory(int[] span_bytes, str operator, bool kept, *, Device device) -> Tensor")


def _library_memory(
    span_bytes: list[int],
    operator: str,  # noqa: ARG001 - for the recorder
    kept: bool,  # noqa: ARG001 - likewise
    *,
    device: torch.device,
) -> Tensor:
    return torch.empty(span_bytes[1], dtype=torch.uint8, device=device)


_LIBRARY.impl("library_memory", _library_memory, "CompositeExplicitAutograd")
LIBRARY_MEMORY: Any = torch.ops.autofit.library_memory.default


def library_memory(span: Workspace, operator: str, *, kept: bool = False) -> Tensor:
    """Fake GPU tensor of the likely size of `span`; the trace has its low and high sizes too.

    Args:
        span: low, likely and high size in bytes.
        operator: the ATen operator that takes the memory, such as `aten._cudnn_rnn`.
        kept: whether the memory is kept for backward, as activations are, and is not workspace.
    """
    taken: Tensor = LIBRARY_MEMORY(
        [span.low_bytes, span.likely_bytes, span.high_bytes], operator, kept, device=GPU
    )
    return taken
