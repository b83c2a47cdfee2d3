"""Reads a collective's ranks, and its input and output tensors, from its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.spec.work import Group
from autofit_workers.tracing.fake.ranks.collectives import NAMESPACES

_C10D = "c10d"  # namespace of operators that return a `Work`
_WAITS = "wait_tensor"
_PEERS = ("dst", "src")  # arguments of `send` and `recv_` that name the other rank
# Names of arguments that collectives write.
_GOT = frozenset({"output", "outputs", "output_tensor", "output_tensors", "output_lists", "out"})


def is_collective(func: OpOverload) -> bool:
    """Whether an operator exchanges tensors between ranks, or waits for an exchange."""
    return func.namespace in NAMESPACES


def is_wait(func: OpOverload) -> bool:
    """Whether an operator is `wait_tensor`, which waits for a collective's result."""
    return func.namespace in NAMESPACES and func._schema.name.endswith(f"::{_WAITS}")


def arguments_of(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an operator's call, by their names in the schema."""
    names = (argument.name for argument in func._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def process_group_of(given: dict[str, Any]) -> Any | None:
    """Process group of a collective; None if its arguments name none.

    Args:
        given: the operator's arguments by name.
    """
    boxed, name = given.get("process_group"), given.get("group_name")
    if boxed is not None:
        return torch.distributed.ProcessGroup.unbox(boxed)
    if isinstance(name, str):
        from autofit_workers.pytorch.collectives import resolve_group

        return resolve_group(name)
    return name  # some operators take the group itself


def ranks_of(given: dict[str, Any], process_group: Any) -> Group:
    """Number of ranks in a collective, and stride between them, as a `Group`; 2 ranks for a send or receive.

    Args:
        given: the operator's arguments by name.
    """
    c10d: Any = torch.distributed.distributed_c10d
    ranks: Sequence[int] = c10d.get_process_group_ranks(process_group)
    peer = next((given[name] for name in _PEERS if name in given), None)
    if peer is not None and "root_rank" not in given and isinstance(given.get("tag"), int):
        return Group(2, max(1, abs(ranks[peer] - torch.distributed.get_rank())))
    if len(ranks) == 1:
        return Group(1)
    return Group(len(ranks), max(1, (max(ranks) - min(ranks)) // (len(ranks) - 1)))


def given_and_got(given: dict[str, Any], result: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Inputs and outputs of a collective; its result is the output if no argument is written.

    Args:
        given: the operator's arguments by name.
    """
    got = tuple(value for name, value in given.items() if name in _GOT)
    gives = tuple(value for name, value in given.items() if name not in _GOT)
    return gives, got or (result,)


def runs_beside(func: OpOverload, given: dict[str, Any]) -> bool:
    """Whether a collective runs on its process group's own stream, not on the caller's.

    Since PyTorch 2.8 a collective with `async_op=False` runs on the caller's stream (`collective` in
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
    """
    return func.namespace != _C10D or bool(given.get("async_op", True))


def work_in(result: Any) -> Any | None:
    """Handle of class `torch.distributed.Work` in a c10d operator's result; None for other operators."""
    last = result[-1] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(last, torch.ScriptObject):
        return None
    return torch.distributed.Work.unbox(last)
