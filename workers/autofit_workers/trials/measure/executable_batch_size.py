"""Calls a function with ever smaller batch sizes until a call does not run out of memory.

It replaces Accelerate's decorator of that name (`accelerate.utils.memory` 1.15): arguments,
the errors that count as out of memory, what is released between tries, and exceptions are the same.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

import torch

_SHRINK = 0.9
# Parts of the messages of PyTorch's `RuntimeError`s, by device.
_OUT_OF_MEMORY = (
    " out of memory.",  # CUDA, HIP, XPU
    "MPS backend out of memory",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "DefaultCPUAllocator: can't allocate memory",
)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error is an out-of-memory error, which a smaller batch may avoid."""
    if not isinstance(error, RuntimeError) or len(error.args) != 1:
        return False
    return any(sign in str(error.args[0]) for sign in _OUT_OF_MEMORY)


def with_executable_batch_size(
    function: Callable[..., Any],
    first_batch_size: Callable[[], int],
    reduce_batch_size: Callable[[], int] | None,
) -> Callable[..., Any]:
    """Wraps `function(batch_size, …)` so that it runs at a batch size that memory suffices for.

    Callers omit the batch size. When memory runs out, the function is called again with a smaller one. A
    later call begins with the size at which the call before succeeded.

    Args:
        function: takes the batch size first.
        first_batch_size: returns the size to begin with; called at the first call.
        reduce_batch_size: returns the size to try after memory ran out; None for a tenth less.

    Returns:
        The function without its first parameter. It raises `RuntimeError` if no size is left, and
        `TypeError` if a caller passes too many arguments.
    """
    batch_size: int | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        """Calls the function with smaller and smaller batch sizes until memory suffices."""
        nonlocal batch_size
        _release()
        _refuse_batch_size(function, args)
        if batch_size is None:
            batch_size = first_batch_size()
        while True:
            if batch_size == 0:
                raise RuntimeError("No executable batch size found, reached zero.")
            try:
                return function(batch_size, *args, **kwargs)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            # Outside the handler, whose traceback holds the function's tensors.
            _release()
            batch_size = int(batch_size * _SHRINK) if reduce_batch_size is None else reduce_batch_size()

    return call


def _refuse_batch_size(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    names = list(inspect.signature(function).parameters)
    if len(names) >= len(args) + 1:
        return
    rest = ", ".join(f"{name}={value}" for name, value in zip(names[1:], args[1:], strict=False))
    name = getattr(function, "__name__", "function")
    raise TypeError(
        f"Batch size was passed into `{name}` as the first argument when called. "
        f"Remove this as the decorator already does so: `{name}({rest})`"
    )


def _release() -> None:
    """Collects garbage, and empties the CUDA allocator's cache."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
