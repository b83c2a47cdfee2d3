"""Outputs and scratch memory of calls of other libraries' operators on a fake device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.spec.errors import WorkerError
from autofit_workers.spec.shown import brief_error
from autofit_workers.spec.trace import Scratch
from autofit_workers.spec.workloads.references import WorkloadError
from autofit_workers.tracing.kernels.registry import REGISTRY, Kernel, is_pytorchs


def kernel_of(func: OpOverload) -> Kernel | None:
    """Registered `Kernel` of an operator; None for PyTorch's own operators and unregistered ones."""
    if _is_pytorchs(func):
        return None
    return REGISTRY.find((func.name(), func._schema.name))


def is_unknown(func: OpOverload) -> bool:
    """Whether an operator is neither PyTorch's nor registered, so its scratch memory is unknown."""
    return not _is_pytorchs(func) and kernel_of(func) is None


@functools.cache
def _is_pytorchs(func: OpOverload) -> bool:
    """Whether an operator is PyTorch's own; cached, as its namespace is parsed from the schema."""
    return is_pytorchs(func.namespace)


def outputs_of(kernel: Kernel, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Outputs of a call as fake tensors, by the function that was registered for the operator.

    To be called within a fake mode.

    Args:
        kernel: the operator's registration.
        func: the operator.
        args, kwargs: its arguments.

    Raises:
        WorkloadError: the function fails, or returns another number of tensors than the operator does.
    """
    result = _answer("outputs", kernel, func, args, kwargs)
    expected, num_made = len(func._schema.returns), len(result) if isinstance(result, tuple | list) else 1
    if result is None:
        num_made = 0
    of_a_list = expected == 1 and not isinstance(func._schema.returns[0].type, torch.TensorType)
    if num_made != expected and not of_a_list:
        raise WorkloadError(
            f"the outputs function that is registered for {_name(func)} returned {num_made} results, where "
            f"the operator returns {expected}: return tensors like the operator's"
        )
    return result


def scratch_of(
    kernel: Kernel, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Scratch, ...]:
    """Scratch memory of a call, by the kernel's registered function; empty if it has none.

    Raises:
        WorkloadError: the registered function fails, or returns anything but numbers of bytes.
    """
    if kernel.scratch is None:
        return ()
    made = _answer("scratch", kernel, func, args, kwargs)
    pieces = [_piece(func, size) for size in (made if isinstance(made, tuple | list) else [made])]
    return tuple(piece for piece in pieces if piece.dimensions != (0,))


def _answer(
    what: str, kernel: Kernel, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Result of a registered function of a kernel for a call; its errors become `WorkloadError`s."""
    function: Callable[..., Any] = getattr(kernel, what)
    args, kwargs = _whole(func, args, kwargs)
    if kernel.by_name:
        names = [argument.name for argument in func._schema.arguments if not argument.kwarg_only]
        args, kwargs = (), {**dict(zip(names, args, strict=True)), **kwargs}
    try:
        return function(*args, **kwargs)
    except (WorkerError, WorkloadError):
        raise
    except Exception as error:
        raise WorkloadError(
            f"the {what} function that is registered for {_name(func)} failed with {brief_error(error)}; its "
            "traceback shows the line"
        ) from error


def _piece(func: OpOverload, size: Any) -> Scratch:
    if isinstance(size, Scratch):
        return size
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise WorkloadError(
            f"the scratch function that is registered for {_name(func)} returned {size!r}: return "
            "the number of bytes, as an integer or a sequence of integers"
        )
    return Scratch(formula="elements", dimensions=(size,), element_bytes=1)


def _whole(
    func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call, with the defaults that the dispatcher leaves out."""
    schema = func._schema.arguments
    rest = [a for a in schema[len(args) :] if not a.kwarg_only]
    positional = (*args, *(kwargs.get(a.name, a.default_value) for a in rest))
    return positional, {a.name: kwargs.get(a.name, a.default_value) for a in schema if a.kwarg_only}


def notes(unknown: Iterable[OpOverload]) -> tuple[str, ...]:
    """Notes for the user about operators that are not registered, a sentence each."""
    return tuple(
        f"operator {_name(func)} is not one of PyTorch's: followed by its outputs; what memory it takes "
        "besides them is not known (tell it by autofit.register_kernel)"
        for func in unknown
    )


def how_to_register(func: OpOverload) -> str:
    """Line of Python code, with placeholders, with which a user can register an operator."""
    arguments = ", ".join(argument.name for argument in func._schema.arguments)
    return (
        f"import autofit; autofit.register_kernel({_name(func)!r}, "
        f"outputs=lambda {arguments}: TENSORS_LIKE_ITS_OWN, scratch=lambda {arguments}: BYTES)"
    )


def _name(func: OpOverload) -> str:
    return str(func.name())
