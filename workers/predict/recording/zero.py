"""Says what the memory of DeepSpeed's ZeRO is: of its engine, and of what it gathers in a step.

What is on its way between ranks, as buckets of gradients, is neither a parameter nor a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from workers.trace import Category


def held(engine: Any) -> Iterator[tuple[Iterable[torch.Tensor], Category]]:
    """What an engine keeps from step to step, beside what its model and its optimizer say of themselves."""
    optimizer = engine.optimizer
    shards = [each.ds_tensor for each in engine.module.parameters() if hasattr(each, "ds_tensor")]
    yield shards, Category.PARAMETER
    # Of float32, by stage: ZeRO counts them among the states of the optimizer.
    for name in ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"):
        yield getattr(optimizer, name, ()), Category.OPTIMIZER_STATE
    flat = getattr(optimizer, "grad_partitions_flat_buffer", None)
    yield () if flat is None else (flat,), Category.GRADIENT
