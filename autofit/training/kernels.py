"""Registers operators of users or libraries, which predictions do not know otherwise."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from autofit.errors import UsageError
from autofit_workers.tracing.kernels.registry import (
    REGISTRY,
    Kernel,
    Place,
    RegisteredTwiceError,
    is_pytorchs,
)

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", re.ASCII)


def register_kernel(
    name: str,
    *,
    outputs: Callable[..., Any] | None = None,
    scratch: Callable[..., int | Sequence[int]] | None = None,
) -> None:
    """Registers an operator from outside PyTorch for predictions, with its outputs and scratch memory.

    Predictions run in a process of their own, which imports the workload's file or module, or runs the
    script. Call this function at the top level there, or in a module that is imported there: a call at a
    Python prompt has no effect on predictions. Kernels that Python code launches without an operator in
    `torch.ops`, such as most Triton kernels, cannot be registered: predictions see only the tensors that the
    Python code makes.

        >>> autofit.register_kernel(
        ...     "my_library::attend",
        ...     outputs=lambda q, k, v: torch.empty_like(q),
        ...     scratch=lambda q, k, v: 4 * q.numel(),  # sums in float32
        ... )

    Args:
        name: name of the operator in `torch.ops`: `library::operator`, or with an overload,
            `library::operator.overload`.
        outputs: function that takes the operator's arguments, with tensors that have shapes but no data, and
            returns tensors as the operator does, like the function for `torch.library.register_fake`; None if
            the operator has such a function already.
        scratch: function that takes the same arguments, and returns the bytes that the call takes on the card
            besides the outputs: a number, or a sequence with a number for each allocation. None if it takes
            no such memory.

    Raises:
        UsageError: the name is no operator's; the operator is PyTorch's own; or it is
            registered already, elsewhere in the program.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} names no operator: write it as torch.ops has it, library::operator")
    if is_pytorchs(name.partition("::")[0]):
        raise UsageError(f"{name} is PyTorch's own operator, and known: leave out its registration")
    for what, function in (("outputs", outputs), ("scratch", scratch)):
        if function is not None and not callable(function):
            raise UsageError(f"{what} of {name} must be a function of the operator's arguments, or None")
    try:
        REGISTRY.add(name, Kernel(outputs=outputs, scratch=scratch), _place(_caller()))
    except RegisteredTwiceError as error:
        raise UsageError(f"{name} is registered already, at {error}: keep one of the two") from error


def _caller() -> FrameType:
    frame = inspect.currentframe()
    for _ in range(2):
        assert frame is not None
        frame = frame.f_back
    assert frame is not None
    return frame


def _place(caller: FrameType) -> Place:
    return Place(
        file=caller.f_code.co_filename,
        line=caller.f_lineno,
        module=id(caller.f_globals),
        is_prompt="__file__" not in caller.f_globals and caller.f_globals.get("__name__") == "__main__",
    )
