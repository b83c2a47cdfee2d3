"""Calls a function with ever smaller batch sizes until a call does not run out of memory.

For code written for Accelerate's decorator of that name (`accelerate.utils.memory` 1.15): arguments,
what counts as running out, what is released between the tries, and the errors are the same.
"""

from __future__ import annotations

import functools
import gc
import inspect
from collections.abc import Callable
from typing import Any

import torch

_SHRINK = 0.9
# In messages of PyTorch's `RuntimeError`s, by device.
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
    """Wraps `function(batch_size, …)`: callers omit the batch size, which shrinks if memory runs out.

    A later call begins at the size that the one before ended with.

    Args:
        first_batch_size: the size to begin with, asked for at the first call.
        reduce_batch_size: the size after one that ran out of memory; a tenth less unless given.

    Returns:
        The function without its first parameter. It raises `RuntimeError` where no size is left, and
        `TypeError` where a caller gives more arguments than are left.
    """
    batch_size: int | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
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
            # Outside of the handler, whose traceback holds the function's tensors.
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
    """Frees objects that nothing refers to any more, and the CUDA allocator's cache."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
