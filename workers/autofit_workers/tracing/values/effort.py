"""Limits the time and memory spent on computing values of fake tensors on the CPU.

Small tensors are always computed. Large ones are computed only by operators that take about as long as a
copy, and by short matrix products. This covers masks, indices and lengths of usual sizes, but not a network's
layers. Two limits keep a prediction fast and its memory small: the bytes that one program's operators write
in total, and the bytes of known values held at the same time. Values beyond a limit are unknown; sizes
that depend on them are assumed and recorded.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from autofit_workers.pytorch.operators import OpOverload

# Elements of tensors that are always computed: of integers and booleans, and of floating-point numbers. The
# latter mostly feed layers, whose weights are unknown.
_MOST_WHOLE, _MOST_REAL = 2**20, 2**14
_MOST_HELD_BYTES = 2**30
# Written at about 3 GB/s, so under a second for floating-point batches, which leaves the rest for masks.
_MOST_WRITTEN_REAL_BYTES, _MOST_WRITTEN_BYTES = 2 * 2**30, 6 * 2**30

# Operators that read their inputs about once, in addition to views and elementwise operators.
_LIGHT = frozenset({
    "_to_copy", "_unique2", "all", "amax", "amin", "any", "arange", "argmax", "argmin", "argsort",
    "bincount", "bucketize", "cat", "clone", "constant_pad_nd", "contiguous", "copy", "copy_",
    "count_nonzero", "cummax", "cummin", "cumprod", "cumsum", "diag_embed", "diff", "eye", "fill_", "flip",
    "full", "full_like", "gather", "histc", "index", "index_add", "index_copy", "index_fill", "index_fill_",
    "index_put", "index_put_", "index_select", "isin", "lift", "lift_fresh", "linspace", "logical_not",
    "masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_", "masked_select", "max", "mean",
    "min", "new_full", "new_ones", "new_zeros", "nonzero", "one_hot", "ones", "ones_like", "randperm",
    "repeat", "repeat_interleave", "roll", "scalar_tensor", "scatter", "scatter_", "scatter_add",
    "scatter_add_", "scatter_reduce", "searchsorted", "sort", "stack", "sum", "take", "topk", "tril",
    "tril_", "tril_indices", "triu", "triu_", "triu_indices", "unique_consecutive", "unique_dim", "where",
    "zero_", "zeros", "zeros_like",
})  # fmt: skip


_PRODUCTS = frozenset({"mm", "bmm", "mv", "addmm", "baddbmm", "_cdist_forward", "_euclidean_dist"})
_MOST_MULTIPLIED = 2**30  # multiplications of one product, which take a tenth of a second


class Effort:
    """Limits on the tensor values that a prediction computes on the CPU, with the bytes held so far."""

    def __init__(self) -> None:
        self._held_bytes = 0
        self._written_real_bytes = 0
        self._written_bytes = 0

    def allows(self, func: OpOverload, given: Iterable[Tensor], made: Iterable[Tensor]) -> bool:
        """Whether an operator may be computed on the CPU; if so, counts the bytes of its large results.

        Args:
            given: tensors that it reads.
            made: tensors that it writes, of which only shapes and dtypes matter.
        """
        made, given = [each for each in made if not is_small(each)], list(given)
        if not made and all(map(is_small, given)):
            return True
        if not (_is_light(func) or _is_short_product(func, given, made)):
            return False
        real_bytes = sum(_num_bytes(each) for each in made if _is_real(each))
        all_bytes = sum(map(_num_bytes, made))
        if (
            self._held_bytes + all_bytes > _MOST_HELD_BYTES
            or self._written_real_bytes + real_bytes > _MOST_WRITTEN_REAL_BYTES
            or self._written_bytes + all_bytes > _MOST_WRITTEN_BYTES
        ):
            return False
        self._written_real_bytes += real_bytes
        self._written_bytes += all_bytes
        return True

    def has_room_for(self, tensor: Tensor) -> bool:
        """Whether values of a tensor's size may be held in addition to those that are held."""
        return self._held_bytes + _num_bytes(tensor) <= _MOST_HELD_BYTES

    def hold(self, values: Tensor) -> bool:
        """Counts the bytes of `values` until they are freed; returns False if they exceed the limit."""
        if is_small(values):
            return True
        num_bytes = values.untyped_storage().nbytes()
        if self._held_bytes + num_bytes > _MOST_HELD_BYTES:
            return False
        self._held_bytes += num_bytes
        weakref.finalize(values, self._release, num_bytes)
        return True

    def _release(self, num_bytes: int) -> None:
        self._held_bytes -= num_bytes


def is_small(tensor: Tensor) -> bool:
    """Whether a tensor is small enough for its values always to be computed."""
    return tensor.numel() <= (_MOST_REAL if _is_real(tensor) else _MOST_WHOLE)


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@functools.cache
def _is_light(func: OpOverload) -> bool:
    schema = func._schema
    is_view = bool(schema.returns) and schema.returns[0].alias_info is not None
    name = schema.name.rpartition("::")[2]
    return name in _LIGHT or torch.Tag.pointwise in func.tags or (is_view and not name.endswith("_"))


def _is_short_product(func: OpOverload, given: list[Tensor], made: list[Tensor]) -> bool:
    if func._schema.name.rpartition("::")[2] not in _PRODUCTS:
        return False
    *_, matrix, _ = given
    return matrix.shape[-1] * sum(each.numel() for each in made) <= _MOST_MULTIPLIED
