"""The compiler behind `torch.compile`, whose import takes as long as that of PyTorch."""

from __future__ import annotations

from collections import Counter

import torch

from autofit_workers.pytorch.private_name import PrivateName

__all__ = ["DYNAMO", "DYNAMO_MODULE", "INDUCTOR_MODULE", "compile_counters"]

# Package that follows code for the compiler; replaced by a light one until code asks for more of it.
DYNAMO_MODULE = "torch._dynamo"
DYNAMO = PrivateName(torch, "_dynamo")
# Package that makes kernels, which imports the one above half-way.
INDUCTOR_MODULE = "torch._inductor"


def compile_counters() -> dict[str, Counter[str]]:
    """Counts of compiled graphs and graph breaks in this process, by kind of count."""
    from torch._dynamo.utils import counters

    return counters
