"""Operators, the kernels that they have, and the layouts of what they return."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._ops import (
    HigherOrderOperator,  # calls functions: checkpoints, flex attention
    OpOverload,  # what a dispatch mode is given for each call
)
from torch._prims_common import (
    make_contiguous_strides_for,  # strides of a new tensor
    suggest_memory_format,  # layout that a result takes from its argument
)

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "has_kernel",
    "make_contiguous_strides_for",
    "operator_names",
    "suggest_memory_format",
]

# Whether an operator, by name, has a kernel for a dispatch key, by name.
has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
# Names of all operators that are registered, to find those that are decomposed on the CPU alone.
operator_names: Callable[[], list[str]] = torch._C._dispatch_get_all_op_names
