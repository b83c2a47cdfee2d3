"""Modes that see each call, and the keys by which PyTorch dispatches."""

from __future__ import annotations

from collections.abc import Callable
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
]

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
