"""The backward pass: its engine, and the node that runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.pytorch.private_name import PrivateName

__all__ = ["EXECUTION_ENGINE", "RUN_BACKWARD", "current_node", "sequence_number"]

# Engine that runs a backward pass; replaced by one that reports when passes begin and end.
EXECUTION_ENGINE = PrivateName(torch.autograd.Variable, "_execution_engine")
# Function that `backward` and `grad` call with the engine; replaced to see each call of a script.
RUN_BACKWARD = PrivateName(torch.autograd, "_engine_run_backward")
# Node whose formula runs now, None outside of a backward pass: it says whose gradient an operator computes.
current_node: Callable[[], Any] = torch._C._current_autograd_node
# Number of the next node, by which a node is matched with the operator of the forward pass.
sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
