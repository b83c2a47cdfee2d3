"""Operators, the kernels that they have, and the layouts of what they return."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import (
    HigherOrderOperator,  # calls functions: checkpoints, flex attention
    OpOverload,  # what a dispatch mode is given for each call
)
from torch._prims_common import (
    make_contiguous_strides_for,  # strides of a new tensor
    suggest_memory_format,  # layout that a result takes from its argument
)

from autofit_workers.pytorch.private_name import PrivateName

__all__ = [
    "SELECT_CONV_BACKEND",
    "HigherOrderOperator",
    "OpOverload",
    "find_operator",
    "has_kernel",
    "make_contiguous_strides_for",
    "operator_names",
    "suggest_memory_format",
]

# Which library computes a convolution, for its fake function; replaced, as a build with CUDA asks the card.
SELECT_CONV_BACKEND = PrivateName(torch._C, "_select_conv_backend")
# Whether an operator, by name, has a kernel for a dispatch key, by name.
has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
# Names of all operators that are registered, to find those that are decomposed on the CPU alone.
operator_names: Callable[[], list[str]] = torch._C._dispatch_get_all_op_names


def find_operator(name: str) -> Any:
    """Operator of PyTorch by name; a stand-in that equals no operator if this release lacks it.

    Args:
        name: namespace, operator and overload, such as `aten.mm.dtype`.

    Returns:
        The `OpOverload`; for one that this release does not have, a stand-in that equals no operator, so that
        its line of a table is never found.
    """
    try:
        return functools.reduce(getattr, name.split("."), torch.ops)
    except AttributeError:
        return object()
