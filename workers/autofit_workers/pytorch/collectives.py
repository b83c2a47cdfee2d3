"""Collectives: what they return, and the operators that functional ones are."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import (
    AsyncCollectiveTensor,  # result of a functional collective, which waits where it is used
)

__all__ = [
    "WORKS",
    "AsyncCollectiveTensor",
    "finished_work",
    "import_fake_functions",
    "process_groups",
    "resolve_group",
    "work_of_future",
]

_c10d: Any = distributed_c10d
_extension: Any = _distributed_c10d
# `Work` around a future, from which DDP's reducer takes its buckets.
work_of_future: Callable[[Any], Any] = _extension._create_work_from_future
# `Work` that is done, which PyTorch has since 2.7.
_FAKE_WORK: Any = getattr(_distributed_c10d, "FakeWork", None)
# Classes of what a collective returns, each with a method `wait` of its own.
WORKS: tuple[Any, ...] = tuple(filter(None, (_extension.Work, _FAKE_WORK)))
# Process group by the name that an operator is given.
resolve_group: Callable[[str], Any] = _c10d._resolve_process_group


def finished_work() -> Any:
    """`Work` of a collective that is done, with no result."""
    if _FAKE_WORK is not None:
        return _FAKE_WORK()
    done: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    done.set_result([])
    return work_of_future(done)


def import_fake_functions() -> None:
    """Imports PyTorch's own fake functions of collectives, which would else be registered later, or never.

    Since 2.11 PyTorch imports them itself; from 2.7 on they lie in a module that other code may import.
    """
    if importlib.util.find_spec("torch.distributed._meta_registrations") is None:
        tool = "torch.distributed._tools.fake_collectives"
        if importlib.util.find_spec(tool) is not None:
            importlib.import_module(tool)


def process_groups() -> dict[Any, Any]:
    """Process groups of this process, each with its backend and store; may be written to."""
    groups: dict[Any, Any] = _c10d._world.pg_map
    return groups
