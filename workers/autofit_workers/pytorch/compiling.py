"""The compiler behind `torch.compile`, whose import takes as long as that of PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.pytorch.private_name import PrivateName

__all__ = [
    "DYNAMO",
    "DYNAMO_MODULE",
    "INDUCTOR_MODULE",
    "compile_counters",
    "set_activation_budget",
    "torch_compile",
]

# `torch.compile` itself, which predictions replace.
torch_compile: Callable[..., Any] = torch.compile
# Package that follows code for the compiler; replaced by a light one until code asks for more of it.
DYNAMO_MODULE = "torch._dynamo"
DYNAMO = PrivateName(torch, "_dynamo")
# Package that makes kernels, which imports the one above half-way.
INDUCTOR_MODULE = "torch._inductor"


def compile_counters() -> dict[str, Counter[str]]:
    """Counts of compiled graphs and graph breaks in this process, by kind of count."""
    from torch._dynamo.utils import counters

    return counters


def set_activation_budget(share: float) -> None:
    """Sets the share of activations, from 0 to 1, that code compiled from now on keeps for backward."""
    from torch._functorch import config

    config.activation_memory_budget = share
