"""Data parallelism by `DistributedDataParallel`: ranks exchange the gradients of whole models.

In a prediction `DistributedDataParallel` is recorded and not run:
`autofit_workers.tracing.recording.data_parallel`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from autofit_workers.apply.parallel.strategy import Followed, Strategy
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.protocol import TrialSpec
from autofit_workers.spec.setup import TRAIN
from autofit_workers.spec.trace import Category
from autofit_workers.workload.workload import Workload


class DataParallelRanks(Strategy):
    """Data parallelism: each rank has the whole model and its own batches."""

    def require_applicable(self, _spec: TrialSpec, workload: Workload) -> None:
        if workload.mode != TRAIN:
            raise InapplicableError(
                "--parallel ddp is for training: ranks exchange gradients, and inference has none; leave "
                "--parallel out"
            )

    def takes_base(self, _base: str) -> bool:
        return True

    def wrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        return DistributedDataParallel(model)

    @staticmethod
    def followed() -> Followed:
        """Methods of `DistributedDataParallel` that allocate gradients, with that category for their memory.

        Source: torch/nn/parallel/distributed.py.
        """
        return {
            DistributedDataParallel: {
                "_ddp_init_helper": Category.GRADIENT,
                "_pre_forward": Category.GRADIENT,
            }
        }


STRATEGY = DataParallelRanks


def bucket_bytes(model: torch.nn.Module) -> int:
    """Bytes of DistributedDataParallel's gradient buckets, hidden from Python; 0 for other models."""
    if not isinstance(model, DistributedDataParallel):
        return 0
    ask: Any = model._get_ddp_logging_data  # noqa: SLF001 - its only account of them
    told = ask()
    sizes: str = told.get("rebuilt_bucket_sizes") or told["bucket_sizes"]
    return sum(map(int, sizes.split(",")))
