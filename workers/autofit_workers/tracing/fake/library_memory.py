"""Operator `autofit::library_memory`: memory that a library such as cuDNN allocates inside another operator.

Functions that repeat an operator's allocations, such as those in `recurrent`, call `library_memory`. The
memory lives as long as the returned tensor; the recorder recognizes the operator as `LIBRARY_MEMORY`.
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
    """Fake GPU tensor that stands for memory which a library, such as cuDNN, allocates in an operator.

    It has the likely size; the trace also records the low and high sizes.

    Args:
        span: low, likely and high size in bytes.
        operator: name for the trace of the operator that needs the memory, such as `aten._cudnn_rnn`.
        kept: whether the memory outlives the operator, as activations do; else it is a workspace.
    """
    taken: Tensor = LIBRARY_MEMORY(
        [span.low_bytes, span.likely_bytes, span.high_bytes], operator, kept, device=GPU
    )
    return taken
