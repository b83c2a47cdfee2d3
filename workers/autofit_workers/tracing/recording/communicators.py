"""Collects the process groups that need an NCCL communicator on the GPU.

A group gets its communicator with its first collective; if `init_process_group` was given a device, when it
is created (`eagerConnectSingleDevice` of torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
"""

from __future__ import annotations

from typing import Any

import torch

from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.tracing.recording.collectives import arguments_of, is_collective, process_group_of


class Communicators:
    """Collection of the process groups for which NCCL holds memory on the GPU, in a communicator.

    Attributes:
        are_eager: whether groups have their communicators as soon as they are created; else from their first
            collective on.
    """

    def __init__(self) -> None:
        self.are_eager = False
        self._sizes: dict[str, int] = {}

    def note(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Adds the process group of an operator that ran on the GPU, if it is a collective."""
        if not is_collective(func):
            return
        group = process_group_of(arguments_of(func, args, kwargs))
        if group is not None:
            self._add(group)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of ranks of each process group with more than one rank, the largest first."""
        distributed: Any = torch.distributed
        if self.are_eager and distributed.is_initialized():
            from autofit_workers.pytorch.collectives import process_groups

            for group in process_groups():
                self._add(group)
        return tuple(sorted((size for size in self._sizes.values() if size > 1), reverse=True))

    def _add(self, group: Any) -> None:
        self._sizes[group.group_name] = group.size()
