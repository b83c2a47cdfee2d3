"""Fake process group of any number of ranks, of which this process is one.

PyTorch's backend `fake` makes such a group; its collectives move no data. It replaces every backend that a
program requests, and reports the requested backend's name to the program.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any, Protocol

import torch

from autofit_workers.tracing.fake import addresses, composites
from autofit_workers.tracing.fake.ranks import collectives, dtensors, pipelines
from autofit_workers.workload.libraries.finders import when_imported

NCCL = "nccl"
_FAKE = "fake"
_TIMEOUT = timedelta(minutes=10)  # PyTorch's default warns if it was built without NCCL


class _Told(Protocol):
    def __call__(self, *, is_eager: bool) -> None: ...


_told: list[_Told] = []


def on_join(tell: _Told) -> None:
    """Registers a function to call whenever the predicted script calls `init_process_group`.

    Args:
        tell: called with True if the script gave `device_id`, so NCCL connects immediately; else with False.
    """
    _told.append(tell)


@functools.cache
def install() -> None:
    """Makes every process group that this process creates a fake one, for good."""
    distributed: Any = torch.distributed
    c10d: Any = distributed.distributed_c10d
    _let_groups_be_fake(c10d)
    for each in (distributed, c10d):
        each.is_nccl_available = lambda: True  # as in PyTorch's CUDA builds
        each.all_gather_object = _gathered
        each.gather_object = _gathered_by_one
        each.broadcast_object_list = _kept
        each.scatter_object_list = _scattered
        each.recv_object_list = _kept
        each.monitored_barrier = _kept
    when_imported("torch.distributed.checkpoint.utils", _let_ranks_save_alone)
    when_imported("torch.distributed.checkpoint.default_planner", _let_parts_be_saved)


def _let_ranks_save_alone(utils: ModuleType) -> None:
    """Lets a rank save or load a distributed checkpoint without exchanging its plan with other ranks."""
    wrapper: Any = vars(utils)["_DistWrapper"]
    initialize = wrapper.__init__
    wrapper.__init__ = lambda self, group, _use_dist, rank: initialize(self, group, False, rank)


def _let_parts_be_saved(planner: ModuleType) -> None:
    """Turns off the check that a distributed checkpoint is complete, as other ranks' shards are missing."""
    checked: Any = vars(planner)["_validate_global_plan"]
    nothing_wrong = checked([], vars(planner)["Metadata"]({}))
    vars(planner)["_validate_global_plan"] = lambda *_args: nothing_wrong


@functools.cache
def _prepare() -> None:
    """Installs fake collectives, `DTensor`s, pipelines and addresses, when the first group is created."""
    composites.WITH_TEMPORARIES.update(collectives.install())
    dtensors.install()
    pipelines.install()
    addresses.install()


@contextmanager
def joined(num_ranks: int, rank: int) -> Iterator[None]:
    """Context in which this process is rank `rank` of a fake process group of `num_ranks` ranks."""
    distributed = torch.distributed
    distributed.init_process_group(NCCL, world_size=num_ranks, rank=rank)
    try:
        yield
    finally:
        distributed.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """Clears `DTensor`'s cache, whose results refer to destroyed process groups.

    The cache would be used again, since device meshes of new groups compare equal to old ones.
    """
    from autofit_workers.pytorch.dtensors import clear_sharding_cache

    clear_sharding_cache()


def _let_groups_be_fake(c10d: Any) -> None:
    """Makes `torch.distributed` create fake process groups, whatever backend the program asks for."""
    from autofit_workers.pytorch.collectives import process_groups
    from autofit_workers.pytorch.process_groups import DEFAULT_TIMEOUT, NEW_PROCESS_GROUP, FakeStore

    make: Callable[..., tuple[Any, Any]] = NEW_PROCESS_GROUP.get()
    initialize: Callable[..., None] = c10d.init_process_group

    def made(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        size, rank, ranks, named, store, name, *_options = args
        kwargs["timeout"] = kwargs.get("timeout") or _TIMEOUT
        kept = {key: value for key, value in kwargs.items() if key not in ("backend_options", "device_id")}
        group, store = make(size, rank, ranks, c10d.Backend(_FAKE), store, name, **kept)
        if group is not c10d.GroupMember.NON_GROUP_MEMBER:
            process_groups()[group] = (named, store)
        return group, store

    signature = inspect.signature(initialize)

    def initialized(*args: Any, **kwargs: Any) -> None:
        _prepare()
        given = signature.bind_partial(*args, **kwargs).arguments
        initialize(
            given.get("backend") or NCCL,
            timeout=given.get("timeout") or _TIMEOUT,
            world_size=_said(given.get("world_size"), "WORLD_SIZE", 1),
            rank=_said(given.get("rank"), "RANK", 0),
            store=FakeStore(),  # no other process exists
        )
        for tell in _told:
            tell(is_eager=given.get("device_id") is not None)

    NEW_PROCESS_GROUP.replace(made)
    DEFAULT_TIMEOUT.replace(lambda _backend: _TIMEOUT)
    distributed: Any = torch.distributed
    named = [distributed, c10d, sys.modules.get("torch.distributed.device_mesh", c10d)]
    for each in named:
        each.init_process_group = initialized
    for each in (distributed, c10d):
        each.TCPStore = each.FileStore = lambda *_args, **_kwargs: FakeStore()


def _said(given: int | None, variable: str, default: int) -> int:
    """World size or rank of a process group, from a call's argument or from the environment.

    Args:
        given: argument of the call; None or negative if it has none.
        variable: environment variable that is read then, such as `WORLD_SIZE`.
        default: value if neither is given.
    """
    return given if given is not None and given >= 0 else int(os.environ.get(variable, default))


def _kept(*_args: Any, **_kwargs: Any) -> None:
    """Does nothing, in place of a call that receives objects from other ranks; the rank keeps its own."""


def _gathered(object_list: list[Any], obj: Any, *_args: Any, **_kwargs: Any) -> None:
    object_list[:] = [obj] * len(object_list)


def _gathered_by_one(
    obj: Any, object_gather_list: list[Any] | None = None, *_args: Any, **_kwargs: Any
) -> None:
    if object_gather_list:
        _gathered(object_gather_list, obj)


def _scattered(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    *_args: Any,
    **_kwargs: Any,
) -> None:
    given = scatter_object_input_list
    if given:
        scatter_object_output_list[0] = given[torch.distributed.get_rank() % len(given)]
