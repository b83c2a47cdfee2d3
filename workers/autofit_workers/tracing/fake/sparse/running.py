"""Runs operators on sparse fake tensors by a function for each operator and layout, such as COO."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.dispatch import DisableTorchFunction
from autofit_workers.pytorch.fake_tensors import FakeTensor
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.tracing.fake.sparse import compressed, conversions, products, softmax
from autofit_workers.tracing.fake.sparse import coordinates as coo
from autofit_workers.tracing.fake.sparse.tensors import Device, Parts, become, is_sparse, made, parts_of
from autofit_workers.tracing.values.decisions import here

aten: Any = torch.ops.aten

Rule = Callable[..., Any]


def concerns(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operator takes a sparse tensor or returns one."""
    if func in _MAKING or kwargs.get("layout", torch.strided) not in (torch.strided, None):
        return True
    with DisableTorchFunction():  # else function modes are called for each `layout`
        return any(is_sparse(each) or (isinstance(each, list) and any(map(is_sparse, each))) for each in args)


def run(gpu: Device, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator on sparse tensors by the function of this package for its layout, such as COO.

    Args:
        gpu: the fake GPU.
        func: the operator.
        args, kwargs: its arguments.

    Raises:
        UnsupportedError: there is no function for the operator and layout.
        RuntimeError: CPU and GPU tensors are mixed.
    """
    with DisableTorchFunction():
        layout = _layout_of(args, kwargs)
    if func not in _FROM_CPU and any(is_sparse(each) and not isinstance(each, FakeTensor) for each in args):
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        )
    of_layout = _OF_COORDINATES if layout is torch.sparse_coo else _OF_COMPRESSED
    rule = _OF_ALL.get(func) or of_layout.get(func)
    if rule is None:
        name = str(layout).removeprefix("torch.")
        raise UnsupportedError(
            f"{func} on a tensor of layout {name} at {here()} is not followed: measure instead, or convert "
            "the tensor there with to_dense()"
        )
    return rule(gpu, *args, **kwargs)


def _layout_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.layout | None:
    """Layout of the first sparse tensor among the arguments; without one, the argument `layout`."""
    for each in args:
        for one in each if isinstance(each, list) else (each,):
            if is_sparse(one):
                layout: torch.layout = one.layout
                return layout
    return kwargs.get("layout")


def _part(pick: Callable[[Parts], Tensor]) -> Rule:
    """Function that returns a part of a sparse tensor, such as its values, uncopied; `pick` selects it."""
    return lambda _gpu, tensor: pick(parts_of(tensor)).detach()


def _number(count: Callable[[Parts], Any]) -> Rule:
    return lambda _gpu, tensor: count(parts_of(tensor))


def _same(gpu: Device, tensor: Tensor, *_rest: Any) -> Tensor:
    """New sparse tensor that shares the indices and values of `tensor`."""
    return made(gpu, parts_of(tensor))


def _empty(gpu: Device, size: Any, *_rest: Any, layout: torch.layout, **options: Any) -> Tensor:
    of = coo.empty if layout is torch.sparse_coo else compressed.empty
    return of(gpu, size, layout=layout, **options)


def _with_dims(gpu: Device, sparse_dim: int, _dense_dim: int, size: Any, **options: Any) -> Tensor:
    return coo.empty(gpu, size, sparse_dim=sparse_dim, **options)


def _empty_like(
    gpu: Device, tensor: Tensor, *, layout: Any = None, dtype: Any = None, **_rest: Any
) -> Tensor:
    parts = parts_of(tensor)
    if layout is torch.strided:
        return torch.empty(parts.size, dtype=dtype or parts.values.dtype, device="cuda")
    if parts.layout is torch.sparse_coo:
        return coo.empty(gpu, parts.size, sparse_dim=parts.sparse_dim, dtype=dtype or parts.values.dtype)
    return made(gpu, parts.with_values(torch.empty_like(parts.values, dtype=dtype)))


def _zeros_like(gpu: Device, tensor: Tensor, **options: Any) -> Tensor:
    if options.get("layout") is torch.strided:
        return torch.zeros(tuple(tensor.shape), dtype=options.get("dtype") or tensor.dtype, device="cuda")
    return _empty_like(gpu, tensor, **options)


def _copy(_gpu: Device, target: Tensor, source: Tensor, *_rest: Any) -> Tensor:
    """Result of `copy_` between tensors of one layout: the target with copied indices and values."""
    parts = parts_of(source)
    return become(target, coo.copied(parts) if parts.layout is torch.sparse_coo else compressed.copied(parts))


def _set_coalesced(_gpu: Device, tensor: Tensor, is_coalesced: bool) -> Tensor:
    return become(tensor, dataclasses.replace(parts_of(tensor), is_coalesced=is_coalesced))


# Elementwise operators of SparseUnaryOps.cpp and SparseCsrTensorMath.cpp.
_UNARY = (
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor", "frac",
    "isinf", "isnan", "log1p", "nan_to_num", "neg", "rad2deg", "relu", "round", "sgn", "sign", "sin", "sinh",
    "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


def _unary(make: Callable[[Rule], Rule]) -> dict[Any, Rule]:
    return {
        overload: make(overload)
        for name in _UNARY
        if (overload := getattr(getattr(aten, name), "default", None)) is not None
    }


def _unary_in_place() -> dict[Any, Rule]:
    packets = (getattr(aten, f"{name}_", None) for name in _UNARY)
    return {packet.default: coo.in_place(packet.default) for packet in packets if packet is not None}


_OF_ALL: dict[Any, Rule] = {
    **_unary_in_place(),
    aten._to_copy.default: conversions.copied,
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.values.default: _part(lambda parts: parts.values),
    aten._nnz.default: _number(lambda parts: parts.num_elements),
    aten.dense_dim.default: _number(lambda parts: parts.values.dim() - 1),
    aten.empty.memory_format: _empty,
    aten.zeros.default: _empty,
    aten.empty_like.default: _empty_like,
    aten.zeros_like.default: _zeros_like,
    aten.copy_.default: _copy,
    aten._to_dense.default: conversions.to_dense,
    aten._to_sparse.default: conversions.to_coordinates,
    aten._to_sparse.sparse_dim: conversions.to_coordinates,
    aten._to_sparse_csr.default: conversions.to_compressed(torch.sparse_csr),
    aten._to_sparse_csc.default: conversions.to_compressed(torch.sparse_csc),
    aten._to_sparse_bsr.default: conversions.to_compressed(torch.sparse_bsr),
    aten._to_sparse_bsc.default: conversions.to_compressed(torch.sparse_bsc),
    aten.mm.default: products.product,
    aten.addmm.default: products.added,
    aten._sparse_addmm.default: products.added,
    aten.mv.default: products.with_vector,
    aten.mul_.Tensor: coo.in_place(aten.mul_.Tensor),
    aten.mul_.Scalar: coo.in_place(aten.mul_.Scalar),
    aten.div_.Tensor: coo.in_place(aten.div_.Tensor),
    aten.zero_.default: coo.in_place(aten.zero_.default),
}
_OF_COORDINATES: dict[Any, Rule] = {
    **_unary(coo.elementwise),
    aten._sparse_coo_tensor_with_dims_and_tensors.default: coo.of_tensors,
    aten._sparse_coo_tensor_with_dims.default: _with_dims,
    aten.sparse_coo_tensor.size: _empty,
    aten._indices.default: _part(lambda parts: parts.indices[0]),
    aten.indices.default: _part(lambda parts: parts.indices[0]),
    aten._values.default: _part(lambda parts: parts.values),
    aten.sparse_dim.default: _number(lambda parts: parts.sparse_dim),
    aten._dimI.default: _number(lambda parts: parts.sparse_dim),
    aten._dimV.default: _number(lambda parts: parts.values.dim() - 1),
    aten.is_coalesced.default: _number(lambda parts: parts.is_coalesced),
    aten._coalesced_.default: _set_coalesced,
    aten._coalesce.default: coo.coalesced,
    aten.clone.default: coo.clone,
    aten.add.Tensor: coo.added,
    aten.add_.Tensor: coo.added_in_place,
    aten.sub.Tensor: coo.added,
    aten.sub_.Tensor: coo.added_in_place,
    aten.mul.Tensor: coo.multiplied,
    aten.div.Tensor: coo.divided,
    aten.div.Tensor_mode: coo.divided,
    aten.pow.Tensor_Scalar: coo.elementwise(aten.pow.Tensor_Scalar),
    aten.sparse_mask.default: coo.masked,
    aten.t.default: coo.transposed,
    aten.transpose.int: coo.transposed,
    aten.cat.default: coo.joined,
    aten.norm.Scalar: coo.norm,
    aten.norm.ScalarOpt_dim: coo.norm,
    aten.sum.default: coo.summed,
    aten.sum.dim_IntList: coo.summed,
    aten._sparse_sum.dim: coo.summed,
    aten._sparse_sum_backward.default: coo.summed_backward,
    aten._sparse_softmax.default: softmax.softmax,
    aten._sparse_log_softmax.default: softmax.softmax,
    aten._sparse_softmax_backward_data.default: softmax.backward,
    aten._sparse_log_softmax_backward_data.default: softmax.backward,
    aten._sparse_sparse_matmul.default: products.of_two_sparse,
    aten.bmm.default: products.batched,
}
_OF_COMPRESSED: dict[Any, Rule] = {
    **_unary(compressed.elementwise),
    aten.sparse_compressed_tensor.comp_plain_value_size: compressed.of_tensors,
    aten.sparse_compressed_tensor.comp_plain_value: compressed.of_tensors,
    aten.crow_indices.default: _part(lambda parts: parts.indices[0]),
    aten.ccol_indices.default: _part(lambda parts: parts.indices[0]),
    aten.col_indices.default: _part(lambda parts: parts.indices[1]),
    aten.row_indices.default: _part(lambda parts: parts.indices[1]),
    aten.sparse_dim.default: _number(lambda _parts: 2),
    aten.clone.default: compressed.clone,
    aten.mul.Scalar: compressed.elementwise(aten.mul.Scalar),
    aten.mul.Tensor: compressed.elementwise(aten.mul.Tensor),
    aten.t.default: compressed.transposed,
    aten.transpose.int: compressed.transposed,
    aten.sum.default: compressed.summed,
    aten.sparse_mask.default: conversions.masked,
    aten.sparse_sampled_addmm.default: products.sampled,
}
_FROM_CPU = frozenset({aten._to_copy.default, aten.copy_.default})
_MAKING = frozenset(
    {
        aten._sparse_coo_tensor_with_dims_and_tensors.default,
        aten._sparse_coo_tensor_with_dims.default,
        aten.sparse_compressed_tensor.comp_plain_value_size,
        aten.sparse_compressed_tensor.comp_plain_value,
        aten._to_sparse.default,
        aten._to_sparse.sparse_dim,
        aten._to_sparse_csr.default,
        aten._to_sparse_csc.default,
        aten._to_sparse_bsr.default,
        aten._to_sparse_bsc.default,
    }
)
