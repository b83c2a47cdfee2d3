"""How tensors are made, moved and swapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.pytorch.private_name import PrivateName

__all__ = [
    "INFERENCE_MODE",
    "MAKE_SUBCLASS",
    "is_all_true",
    "make_subclass",
    "make_wrapper_subclass",
    "parse_to",
    "set_deterministic_algorithms",
    "swap_tensor_impl",
]

# Makes a tensor of a subclass from another's memory; replaced while libraries make parameters of fake data.
MAKE_SUBCLASS = PrivateName(torch.Tensor, "_make_subclass")
make_subclass: Callable[..., Any] = MAKE_SUBCLASS.get()  # PyTorch's own, whatever replaces it
# Guard behind `torch.inference_mode`; replaced, as operators would not decompose below it.
INFERENCE_MODE = PrivateName(torch._C, "_InferenceMode")
# Makes a tensor without memory that holds others.
make_wrapper_subclass: Callable[..., Any] = torch.Tensor._make_wrapper_subclass
# Method of a condition that only `torch._check_tensor_all` calls.
is_all_true = torch.Tensor._is_all_true
# Reads the arguments of `.to(…)`: device, dtype, whether non-blocking, and memory format.
parse_to: Callable[..., tuple[Any, Any, bool, Any]] = torch._C._nn._parse_to
# Swaps two tensors, also where there are weak references to them.
swap_tensor_impl: Callable[[torch.Tensor, torch.Tensor], None] = torch._C._swap_tensor_impl
# What `torch.use_deterministic_algorithms` does to eager code, without its import of the compiler.
set_deterministic_algorithms: Callable[..., None] = torch._C._set_deterministic_algorithms
