"""Collectives: what they return, and the operators that functional ones are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C import _distributed_c10d
from torch._C._distributed_c10d import FakeWork  # `Work` that is done
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import (
    AsyncCollectiveTensor,  # result of a functional collective, which waits where it is used
)

__all__ = ["AsyncCollectiveTensor", "FakeWork", "process_groups", "resolve_group", "work_of_future"]

_c10d: Any = distributed_c10d
_extension: Any = _distributed_c10d
# `Work` around a future, from which DDP's reducer takes its buckets.
work_of_future: Callable[[Any], Any] = _extension._create_work_from_future
# Process group by the name that an operator is given.
resolve_group: Callable[[str], Any] = _c10d._resolve_process_group


def process_groups() -> dict[Any, Any]:
    """Process groups of this process, each with its backend and store; may be written to."""
    groups: dict[Any, Any] = _c10d._world.pg_map
    return groups
