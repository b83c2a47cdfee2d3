"""How PyTorch registers kernels of Triton, and how it looks for Triton."""

from __future__ import annotations

import importlib
from typing import Any

from torch._library import custom_ops
from torch.utils import _triton

__all__ = ["COMPILER_LOOKS_FOR_TRITON", "custom_ops", "library", "triton_search"]

# Kernels by operator made with `torch.library.triton_op`, and whether launches are wrapped.
library: Any = importlib.import_module("torch._library.triton")
# Module of functions that look for Triton once and remember what they found.
triton_search = _triton
# Modules of the compiler that look for Triton as they are imported, without these functions: since 2.7 the
# first, before that the others.
COMPILER_LOOKS_FOR_TRITON = tuple(
    f"torch._inductor.runtime.{name}"
    for name in ("triton_compat", "hints", "autotune_cache", "coordinate_descent_tuner")
)
