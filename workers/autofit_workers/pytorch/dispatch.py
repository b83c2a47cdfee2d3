"""Modes that see each call, and the keys by which PyTorch dispatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import (
    DispatchKey,
    DispatchKeySet,  # what a wrapper of a tensor is dispatched by
    _DisableTorchDispatch,
    _dispatch_keys,
)
from torch.utils._python_dispatch import (
    TorchDispatchMode,  # base of the mode that follows a step
    _disable_current_modes,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    is_traceable_wrapper_subclass,  # whether a tensor holds others, as quantized weights do
)

__all__ = [
    "DisableTorchDispatch",
    "DisableTorchFunction",
    "DispatchKey",
    "DispatchKeySet",
    "TorchDispatchMode",
    "current_mode",
    "current_modes",
    "disable_current_modes",
    "dispatch_keys",
    "is_functorch_tensor",
    "is_traceable_wrapper_subclass",
    "without_function_modes",
    "without_global_hooks",
]

# Forward hooks of all modules, and which of them are called after an error.
_GLOBAL_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called")
# Contexts in which a tensor is handled as it is, without its class or a mode seeing the call.
DisableTorchDispatch = _DisableTorchDispatch
DisableTorchFunction = torch._C.DisableTorchFunction
# Context without any mode, for tensors of the host that a step does not allocate.
disable_current_modes = _disable_current_modes
# Innermost mode, and all of them: code that runs below a mode finds it by these.
current_mode = _get_current_dispatch_mode
current_modes = _get_current_dispatch_mode_stack
# Keys of a tensor, which its wrapper takes over.
dispatch_keys: Callable[[torch.Tensor], Any] = _dispatch_keys
# Whether `torch.func` has wrapped a tensor, whose device cannot be set then.
is_functorch_tensor: Callable[[Any], bool] = torch._C._functorch.is_functorch_wrapped_tensor


@contextmanager
def without_function_modes() -> Iterator[None]:
    """Context in which no function mode sees Python calls of PyTorch."""
    modes = []
    while torch._C._len_torch_function_stack():
        modes.append(torch._C._pop_torch_function_stack())
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


@contextmanager
def without_global_hooks() -> Iterator[None]:
    """Context in which the forward hooks that are set for all modules are not called."""
    module: Any = torch.nn.modules.module
    hooks = [getattr(module, name) for name in _GLOBAL_HOOKS]
    kept = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    try:
        yield
    finally:
        for each, before in zip(hooks, kept, strict=True):
            each.update(before)
