"""Scratch memory that PyTorch's operators allocate on a GPU besides their outputs.

A `Recipe` lists the scratch memory of one call, before and after its outputs are allocated; the recorder adds
it to the trace. Source files named here are those of PyTorch 2.13, in `aten/src/ATen/native` unless said
otherwise. `autofit_workers.replay.curve.scratch.formulas` handles sizes that differ in PyTorch 2.4 to 2.12.

Not predicted because they are small: buffers of reductions over inner dimensions that several thread blocks
share (cuda/Reduce.cuh, kilobytes), semaphores of all that they share (there, four bytes for each column of
blocks), buffers of GroupNorm and native batch norm (a few numbers per group or channel), cuBLASLt's 1 MiB.
Not predicted because only a GPU's driver knows the size: workspace and reserve of cuDNN's batch norm. Not
predicted because they are rare in training: top-k, cumulative sums, FFTs.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor

from autofit_workers.pytorch.operators import OpOverload, find_operator, suggest_memory_format
from autofit_workers.spec.trace import Scratch
from autofit_workers.tracing.fake.layouts import convolution_format
from autofit_workers.tracing.kernels.following import kernel_of, scratch_of

aten: Any = torch.ops.aten

_INDEX_BYTES = 8
_FLOAT_BYTES = 4
_CHUNK_ELEMENTS = 65536  # `kChunkSize` of cuda/MultiTensorApply.cuh


class Lifetime(Enum):
    """Moment at which a block of scratch memory is freed.

    It is the end of its stage (see `Recipe`), the end of the operator, or never, for a thread's cuBLAS
    handle.
    """

    STAGE = auto()
    OPERATOR = auto()
    THREAD = auto()  # never: a thread's cuBLAS handle keeps it


@dataclass(frozen=True, slots=True)
class Request:
    """Block of scratch memory that an operator allocates besides its outputs.

    Attributes:
        correction: name of the rule by which autofit knows of the block, such as `layout_copies`.
        scratch: formula and dimensions from which the size in bytes follows.
        lifetime: when the block is freed.
    """

    correction: str
    scratch: Scratch
    lifetime: Lifetime = Lifetime.OPERATOR


Stage = tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Scratch memory of one operator call.

    A stage is a tuple of requests, allocated in order; blocks of lifetime `STAGE` are freed at its end.

    Attributes:
        before, after: stages before and after the outputs are allocated.
    """

    before: tuple[Stage, ...] = ()
    after: tuple[Stage, ...] = ()


def has_recipe(func: OpOverload) -> bool:
    """Whether an operator may allocate scratch memory besides its outputs."""
    return func in _RECIPES or kernel_of(func) is not None


def recipe(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe | None:
    """Scratch memory of an operator's call; None for an operator that allocates none."""
    make = _RECIPES.get(func)
    if make is None:
        return _registered(func, args, kwargs)
    by_name = [a for a in func._schema.arguments[len(args) :] if not a.kwarg_only] if kwargs else []
    return make(*args, *(kwargs.get(a.name, a.default_value) for a in by_name))


def _registered(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe | None:
    """Scratch memory of a call of another library's operator; None for an operator not registered."""
    kernel = kernel_of(func)
    if kernel is None:
        return None
    return Recipe(after=(tuple(Request("kernels", each) for each in scratch_of(kernel, func, args, kwargs)),))


def _elements(correction: str, shape: Iterable[int], element_bytes: int, **options: Any) -> Request:
    return _request(correction, "elements", shape, element_bytes, **options)


def _request(
    correction: str, formula: str, dimensions: Iterable[int], element_bytes: int, **options: Any
) -> Request:
    scratch = Scratch(formula=formula, dimensions=tuple(dimensions), element_bytes=element_bytes)
    return Request(correction, scratch, **options)


def _copies(*tensors: Tensor | None, layout: torch.memory_format = torch.contiguous_format) -> Stage:
    """Requests for copies of those `tensors` that are not in memory format `layout` yet."""
    return tuple(
        _elements("layout_copies", tensor.shape, tensor.element_size())
        for tensor in tensors
        if tensor is not None and not tensor.is_contiguous(memory_format=_applicable(tensor, layout))
    )


def _applicable(tensor: Tensor, layout: torch.memory_format) -> torch.memory_format:
    dimensions = {torch.channels_last: 4, torch.channels_last_3d: 5}
    return layout if dimensions.get(layout, tensor.dim()) == tensor.dim() else torch.contiguous_format


def _norms(tensors: list[Tensor], *_rest: Any) -> Recipe:
    """Scratch of `_foreach_norm`: for each tensor, a float for each chunk of the largest tensor.

    See cuda/ForeachReduceOp.cu.
    """
    most_pieces = max(-(-tensor.numel() // _CHUNK_ELEMENTS) for tensor in tensors)
    return Recipe(before=((_elements("norms", (len(tensors), most_pieces), _FLOAT_BYTES),),))


def _decomposition(matrix: Tensor, *_rest: Any) -> Recipe:
    """Scratch of an SVD: a copy of the matrix, which cuSOLVER overwrites.

    See cuda/linalg/BatchLinearAlgebraLib.cpp.
    """
    return Recipe(after=((_elements("layout_copies", matrix.shape, matrix.element_size()),),))


# Matrix products. cuda/Blas.cpp, `prepare_matrix_for_cublas` and its sibling for batches.

_WORKSPACES = re.compile(r":([0-9]+):([0-9]+)")
_KIB = 1024


def _cublas() -> Request:
    """Workspace of a cuBLAS handle (`parseChosenWorkspaceSize` of cuda/CublasHandlePool.cpp).

    The environment variable CUBLAS_WORKSPACE_CONFIG sets its size by pairs of a size in KiB and a number of
    buffers, such as `:4096:8`; without the variable the size depends on the card.
    """
    told = _WORKSPACES.findall(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    sizes = (sum(int(size) * int(count) for size, count in told) * _KIB,) if told else ()
    return _request("cublas", "cublas", sizes, 1, lifetime=Lifetime.THREAD)


def _product(*matrices: Tensor) -> Recipe:
    copies = tuple(
        _elements("layout_copies", matrix.shape, matrix.element_size())
        for matrix in matrices
        if not _is_matrix_for_cublas(matrix)
    )
    return Recipe(after=((*copies, _cublas()),))


def _added_product(_input: Tensor, *matrices: Tensor) -> Recipe:
    return _product(*matrices)


def _is_matrix_for_cublas(matrix: Tensor) -> bool:
    """Whether cuBLAS reads a matrix without a copy: its rows or columns are dense and do not overlap."""
    if matrix.dim() < 2 or matrix.is_contiguous():
        return True
    (rows, columns), (row_stride, column_stride) = matrix.shape[-2:], matrix.stride()[-2:]
    return (row_stride == 1 and column_stride >= max(1, rows)) or (
        column_stride == 1 and row_stride >= max(1, columns)
    )


# Attention. transformers/cuda/attention_backward.cu. Arguments are B×H×S×D, kernels get B×S×H×D.


def _flash_attention_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, _value: Tensor, out: Tensor, *_rest: Any
) -> Recipe:
    """Scratch of flash attention's backward: row sums and float32 sums of dQ.

    See transformers/cuda/flash_attn/flash_api.cpp, `mha_bwd`.
    """
    batch, heads, rows, head_size = query.shape
    scratch = [
        _request("attention", "flash_rows", (batch, heads, rows), _FLOAT_BYTES),
        _request("attention", "flash_query_gradient", (batch, heads, rows, head_size), _FLOAT_BYTES),
    ]
    if key.size(1) != heads:  # one gradient for each head of the query, summed over the groups
        shape = (batch, heads, key.size(2), head_size)
        scratch += [_elements("attention", shape, query.element_size())] * 2
    return Recipe(
        before=(_copies(grad_out.transpose(1, 2), out.transpose(1, 2)),),
        after=(tuple(scratch),),
    )


def _efficient_attention_backward(
    grad_out: Tensor, query: Tensor, _key: Tensor, _value: Tensor, _bias: Any, out: Tensor, *_rest: Any
) -> Recipe:
    """Scratch of memory-efficient attention's backward: row sums of `grad_out * out`, then tiles of dQ.

    For float32 inputs ATen operators compute the row sums, with temporaries; else the kernel does.
    """
    batch, heads, rows, head_size = query.shape
    row_sums = _elements("attention", (batch, heads, rows), _FLOAT_BYTES)
    tiles = _request("attention", "efficient_query_gradient", (batch, heads, rows, head_size), _FLOAT_BYTES)
    if query.dtype == torch.float32:
        product = _elements("attention", out.shape, _FLOAT_BYTES, lifetime=Lifetime.STAGE)
        strided_sums = _elements("attention", (batch, heads, rows), _FLOAT_BYTES, lifetime=Lifetime.STAGE)
        stages: tuple[Stage, ...] = ((product, strided_sums, row_sums), (tiles,))
    else:
        stages = ((row_sums, tiles),)
    return Recipe(before=(_copies(grad_out.transpose(1, 2)),), after=stages)


def _flash_attention_of_rows_backward(  # noqa: PLR0917 - the operator's own signature
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    _logsumexp: Tensor,
    lengths: Tensor | None,
    *_rest: Any,
) -> Recipe:
    """Scratch of flash attention's backward on B×S×H×D, or on packed sequences (`mha_varlen_bwd`)."""
    if lengths is None:
        rows_last = (tensor.transpose(1, 2) for tensor in (grad_out, query, key, value, out))
        return _flash_attention_backward(*rows_last)
    rows, heads, head_size = query.shape
    spaced = rows + 128 * (lengths.numel() - 1)
    width = 256 if head_size > 192 else -(-head_size // 32) * 32
    scratch = [
        _elements("attention", (heads, spaced), _FLOAT_BYTES),
        _elements("attention", (spaced, heads, width), _FLOAT_BYTES),
    ]
    if key.size(1) != heads:
        scratch += [_elements("attention", (key.size(0), heads, head_size), query.element_size())] * 2
    return Recipe(before=(_copies(grad_out, out),), after=(tuple(scratch),))


def _efficient_attention_of_rows_backward(  # noqa: PLR0917 - the operator's own signature
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Any, out: Tensor, *_rest: Any
) -> Recipe:
    """Scratch of memory-efficient attention's backward on B×S×H×D; packed sequences have B = 1."""
    first, second, third = (tensor.transpose(1, 2) for tensor in (grad_out, query, out))
    return _efficient_attention_backward(first, second, key, value, bias, third)


def _cudnn_attention_backward(_grad_out: Tensor, query: Tensor, *_rest: Any) -> Recipe:
    """Scratch of cuDNN attention's backward: a workspace in which dQ is summed in float32.

    See cudnn/MHA.cpp, `run_cudnn_SDP_bprop`.
    """
    batch, heads, rows, head_size = query.shape
    scratch = _request("attention", "cudnn_query_gradient", (batch, heads, rows, head_size), _FLOAT_BYTES)
    return Recipe(after=((scratch,),))


# Normalization and softmax.


def _layer_norm(input: Tensor, *_rest: Any) -> Recipe:  # noqa: A002
    """Scratch of layer norm: a contiguous copy of the input, which backward does not keep.

    See cuda/layer_norm_kernel.cu, `expect_contiguous`.
    """
    return Recipe(before=(_copies(input),))


def _layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,  # noqa: A002
    normalized_shape: list[int],
    _mean: Tensor,
    _rstd: Tensor,
    weight: Tensor | None,
    *rest: Any,
) -> Recipe:
    """Scratch of layer norm's backward: contiguous copies of input and gradient, and tiles of partial sums.

    See cuda/layer_norm_kernel.cu; the input is copied first.
    """
    num_normalized = len(normalized_shape)
    rows, width = input.shape[: input.dim() - num_normalized], 1
    for size in normalized_shape:
        width *= size
    output_mask = rest[-1]
    tiles = (
        ()
        if weight is None
        else tuple(
            _request("layer_norm", "layer_norm_tiles", (*rows, width), weight.element_size())
            for needed in output_mask[1:]
            if needed
        )
    )
    return Recipe(before=(_copies(input),), after=((*_copies(grad_out), *tiles),))


def _first_contiguous(input: Tensor, *_rest: Any) -> Recipe:  # noqa: A002
    """Scratch of operators such as softmax, whose kernels need dense rows: a contiguous copy of the input.

    See cuda/SoftMax.cu, cuda/group_norm_kernel.cu, …
    """
    return Recipe(before=(_copies(input),))


def _first_two_contiguous(first: Tensor, second: Tensor, *_rest: Any) -> Recipe:
    return Recipe(before=(_copies(first, second),))


def _softmax_backward(grad_out: Tensor, output: Tensor, *_rest: Any) -> Recipe:
    """Scratch of softmax's backward: `grad_out * output`, allocated after the result.

    See cuda/SoftMax.cu, `softmax_backward_cuda_out`.
    """
    product = _elements("softmax_backward", grad_out.shape, grad_out.element_size())
    return Recipe(after=((product, *_copies(output)),))


def _first_in_its_layout(input: Tensor, *_rest: Any) -> Recipe:  # noqa: A002
    """Scratch of pooling and upsampling: the input's copy, if neither contiguous nor channels last.

    See cuda/DilatedMaxPool2d.cu, AveragePool2d.cu and UpSample*.cu.
    """
    return Recipe(before=(_copies(input, layout=suggest_memory_format(input)),))


def _batch_norm_backward(grad_out: Tensor, input: Tensor, *_rest: Any) -> Recipe:  # noqa: A002
    """Scratch of batch norm's backward: the gradient copied to the input's layout (cudnn/BatchNorm.cpp).

    2-D inputs have no scratch: they go to native kernels, which read any strides
    (`_select_batch_norm_backend` of Normalization.cpp). So did bfloat16 before PyTorch 2.7.
    """
    if input.dim() < 3:
        return Recipe()
    return Recipe(before=(_copies(grad_out, layout=suggest_memory_format(input)),))


# Convolution. Convolution.cpp, `convolution` and `convolution_backward`, and cudnn/ConvShared.cpp.


def _convolution(input: Tensor, weight: Tensor, *_rest: Any) -> Recipe:  # noqa: A002
    layout = convolution_format(input, weight)
    return Recipe(before=(_copies(input, weight, layout=layout),))


def _convolution_backward(
    grad_out: Tensor,
    input: Tensor,  # noqa: A002
    weight: Tensor,
    *rest: Any,
) -> Recipe:
    layout = convolution_format(input, weight)
    output_mask = rest[-1]
    input_copied = input if output_mask[1] else None
    return Recipe(before=(_copies(input_copied, grad_out, layout=layout), _copies(weight, layout=layout)))


def _sum(input: Tensor, dim: int | Sequence[int] | None = None, *_rest: Any) -> Recipe:  # noqa: A002
    """Scratch of a sum: int64 copies of booleans and small integers, and the reduction's buffer.

    See ReduceOps.cpp, `make_reduction`.
    """
    copies = () if _is_added_up_as_it_is(input) else (_elements("layout_copies", input.shape, _INDEX_BYTES),)
    stage = (*copies, *_reduction(input, dim))
    return Recipe(after=(stage,)) if stage else Recipe()


def _is_added_up_as_it_is(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.int64


def _reduction(tensor: Tensor, dim: int | Sequence[int] | None) -> Stage:
    """Request for a buffer in which thread blocks share a reduction over outer dimensions; may be empty.

    Half precision is summed in float32. `replay.curve.scratch.reductions` computes the size.
    """
    if not tensor.dim():
        return ()
    summed = {each % tensor.dim() for each in ([dim] if isinstance(dim, int) else dim or range(tensor.dim()))}
    sizes = list(enumerate(zip(tensor.shape, tensor.stride(), strict=True)))
    kept = sorted((each for place, each in sizes if place not in summed), key=lambda each: each[1])
    innermost = min((stride for place, (_, stride) in sizes if place in summed), default=0)
    if not kept or innermost < kept[0][1]:
        return ()
    width, first = 1, kept[0][1]
    for size, stride in kept:
        width *= size if stride == width * first else 1  # dense dimensions count as one
    num_outputs = math.prod(size for size, _ in kept)
    dimensions = (tensor.numel() // max(num_outputs, 1), num_outputs, width if first == 1 else 1)
    is_wide = tensor.is_complex() or tensor.dtype == torch.float64 or not tensor.is_floating_point()
    return (_request("reductions", "reduction", dimensions, (1 + is_wide) * _FLOAT_BYTES),)


# Indices.


def _embedding_backward(grad_out: Tensor, indices: Tensor, num_weights: int, *_rest: Any) -> Recipe:
    """Scratch of an embedding's backward, which sorts indices and sums rows.

    See cuda/Embedding.cu for the sort and cuda/EmbeddingBackwardKernel.cu for the sums.
    """

    def request(
        formula: str, *dimensions: int, size: int = indices.element_size(), **options: Any
    ) -> Request:
        return _request("embedding_backward", formula, dimensions, size, **options)

    positions = [request("embedding_indices", *indices.shape) for _ in range(2)]
    # The positions to sort, and the second pair of buffers that CUB needs to sort.
    sorting = [request("embedding_indices", *indices.shape, lifetime=Lifetime.STAGE) for _ in range(3)]
    segments = [request("embedding_segments", num_weights, *indices.shape) for _ in range(3)]
    partial_sums = request(
        "embedding_partial_sums", num_weights, grad_out.size(-1), *indices.shape, size=_FLOAT_BYTES
    )
    return Recipe(before=(_copies(grad_out), (*positions, *sorting)), after=((*segments, partial_sums),))


def _sort(tensor: Tensor, dim: int = -1, *_rest: Any) -> Recipe:
    """Scratch of a sort along the last dimension (cuda/Sort.cpp, `sort_cuda_kernel`).

    For other dimensions nothing is predicted.
    """
    if not tensor.dim() or dim % tensor.dim() != tensor.dim() - 1:
        return Recipe()
    return Recipe(after=((_request("sort", "sort", tensor.shape, tensor.element_size()),),))


def _stable_sort(tensor: Tensor, _stable: bool | None = None, dim: int = -1, *_rest: Any) -> Recipe:
    return _sort(tensor, dim)


def _index_put(
    _self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, *_rest: Any
) -> Recipe:
    """Scratch of `index_put`, if it accumulates (cuda/Indexing.cu, `index_put_with_sort_kernel`).

    The scratch is a linear index, its sorted copy, the positions and their sorted copy; CUB sorts both
    in further buffers.
    """
    if not accumulate:
        return Recipe()
    shapes = [index.shape for index in indices if index is not None]
    shape = torch.broadcast_shapes(*shapes)
    kept = [_elements("index_backward", shape, _INDEX_BYTES) for _ in range(3)]
    sorting = [_elements("index_backward", shape, _INDEX_BYTES, lifetime=Lifetime.STAGE) for _ in range(3)]
    return Recipe(before=((kept[0],), _copies(values), (*kept[1:], *sorting)))


_RECIPES: dict[Any, Callable[..., Recipe]] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.mv.default: _product,
    aten.dot.default: _product,
    aten.addmm.default: _added_product,
    aten.baddbmm.default: _added_product,
    # Compiled code calls products with the tensor that they write.
    aten.mm.out: _product,
    aten.bmm.out: _product,
    aten.addmm.out: _added_product,
    aten.baddbmm.out: _added_product,
    aten.addmv.default: _added_product,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_attention_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_attention_backward,
    aten._flash_attention_backward.default: _flash_attention_of_rows_backward,
    aten._efficient_attention_backward.default: _efficient_attention_of_rows_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_attention_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    find_operator("aten._fused_rms_norm.default"): _layer_norm,  # since 2.8
    aten._softmax.default: _first_contiguous,
    aten._log_softmax.default: _first_contiguous,
    aten.softmax.int: _first_contiguous,
    aten.log_softmax.int: _first_contiguous,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _first_two_contiguous,
    aten.native_group_norm.default: _first_contiguous,
    aten.native_group_norm_backward.default: _first_two_contiguous,
    aten.max_pool2d_with_indices.default: _first_in_its_layout,
    aten.avg_pool2d.default: _first_in_its_layout,
    aten._adaptive_avg_pool2d.default: _first_in_its_layout,
    aten.upsample_bilinear2d.default: _first_in_its_layout,
    aten.upsample_nearest2d.default: _first_in_its_layout,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.cudnn_batch_norm_backward.default: lambda tensor, grad_out, *_: _batch_norm_backward(
        grad_out, tensor
    ),
    aten._foreach_norm.Scalar: _norms,
    aten._linalg_svd.default: _decomposition,
    aten.sum.default: _sum,
    aten.sum.dim_IntList: _sum,
    aten.mean.dim: _sum,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put,
    aten._index_put_impl_.default: _index_put,
    aten._unsafe_index_put.default: _index_put,
}
