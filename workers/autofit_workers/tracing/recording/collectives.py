"""Facts read off a collective's arguments: which ranks take part, and which tensors each gives and gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from autofit_workers.spec.work import Group
from autofit_workers.tracing.fake.ranks.collectives import NAMESPACES

_C10D = "c10d"  # the operators behind `torch.distributed`'s functions, which give their caller a `Work`
_WAITS = "wait_tensor"
_PEERS = ("dst", "src")  # by which `send` and `recv_` name the one other rank
# Arguments that are written.
_GOT = frozenset({"output", "outputs", "output_tensor", "output_tensors", "output_lists", "out"})


def is_collective(func: torch._ops.OpOverload) -> bool:
    """Whether an operator exchanges tensors between ranks, or waits for such an exchange."""
    return func.namespace in NAMESPACES


def is_wait(func: torch._ops.OpOverload) -> bool:
    """Whether an operator waits for the result that a collective's operator returned."""
    return func.namespace in NAMESPACES and func._schema.name.endswith(f"::{_WAITS}")


def arguments_of(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments that an operator was called with, by name."""
    names = (argument.name for argument in func._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def process_group_of(given: dict[str, Any]) -> Any | None:
    """Process group of a collective; None where its operator has none.

    Args:
        given: the operator's arguments by name.
    """
    boxed, name = given.get("process_group"), given.get("group_name")
    if boxed is not None:
        return torch.distributed.ProcessGroup.unbox(boxed)
    if isinstance(name, str):
        c10d: Any = torch.distributed.distributed_c10d
        return c10d._resolve_process_group(name)
    return name  # some are given the group itself


def ranks_of(given: dict[str, Any], process_group: Any) -> Group:
    """Ranks of a collective, numbered as among all ranks; two for a send or a receive."""
    c10d: Any = torch.distributed.distributed_c10d
    ranks: Sequence[int] = c10d.get_process_group_ranks(process_group)
    peer = next((given[name] for name in _PEERS if name in given), None)
    if peer is not None and "root_rank" not in given and isinstance(given.get("tag"), int):
        return Group(2, max(1, abs(ranks[peer] - torch.distributed.get_rank())))
    if len(ranks) == 1:
        return Group(1)
    return Group(len(ranks), max(1, (max(ranks) - min(ranks)) // (len(ranks) - 1)))


def given_and_got(given: dict[str, Any], result: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments that a rank gives to a collective, and those it gets (else the result), lists as they are."""
    got = tuple(value for name, value in given.items() if name in _GOT)
    gives = tuple(value for name, value in given.items() if name not in _GOT)
    return gives, got or (result,)


def runs_beside(func: torch._ops.OpOverload, given: dict[str, Any]) -> bool:
    """Whether a collective runs on its group's own stream, beside the stream of its caller.

    Since PyTorch 2.8 a collective whose caller waits for it at once runs on the caller's stream
    (`collective` in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, `asyncOp`).
    """
    return func.namespace != _C10D or bool(given.get("async_op", True))


def work_in(result: Any) -> Any | None:
    """`Work` that an operator of c10d returned, by which its caller waits; None of other operators."""
    last = result[-1] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(last, torch.ScriptObject):
        return None
    return torch.distributed.Work.unbox(last)
