"""What operators take beside their outputs, as PyTorch's source says; sizes in bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from autofit_workers.replay.curve.scratch.formulas import Platform, scratch_bytes
from autofit_workers.spec.architecture import Architecture
from autofit_workers.tracing.recording.hidden import Lifetime, Recipe, Stage, recipe

aten: Any = torch.ops.aten


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def made(operator: Any, *args: Any, **kwargs: Any) -> Recipe:
    found = recipe(operator, args, kwargs)
    assert found is not None
    return found


def described(stages: tuple[Stage, ...]) -> list[list[tuple[str, str, tuple[int, ...], int]]]:
    return [
        [(r.correction, r.scratch.formula, r.scratch.dimensions, r.scratch.element_bytes) for r in stage]
        for stage in stages
        if stage
    ]


def copy_of(*shape: int, element_bytes: int = 4) -> tuple[str, str, tuple[int, ...], int]:
    return ("layout_copies", "elements", shape, element_bytes)


CUBLAS = ("cublas", "cublas", (), 1)


def test_most_operators_take_nothing():
    assert recipe(aten.relu.default, (tensor(4),), {}) is None


def test_a_product_takes_the_workspace_of_its_threads_handle_after_its_output():
    found = made(aten.addmm.default, tensor(5), tensor(3, 4), tensor(4, 5))
    assert described(found.before) == []
    assert described(found.after) == [[CUBLAS]]
    assert found.after[0][0].lifetime is Lifetime.THREAD


def test_the_workspace_is_as_large_as_the_variable_for_deterministic_products_says(monkeypatch):
    for value, sizes in ((":4096:8", (2**25,)), (":4096:2:16:8", (8320 * 2**10,)), ("none", ())):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
        (request,) = made(aten.mm.default, tensor(3, 4), tensor(4, 5)).after[0]
        assert request.scratch.dimensions == sizes
        expected = sizes[0] if sizes else 8320 * 2**10
        assert scratch_bytes(request.scratch, Platform(Architecture.of("sm_80"), (2, 13))) == expected


@pytest.mark.parametrize(
    "matrix", [tensor(3, 4), tensor(4, 3).t(), tensor(3, 8)[:, :4], tensor(4, 6).t()[:3], tensor(1, 4)]
)
def test_cublas_takes_rows_or_columns_that_are_dense(matrix):
    assert described(made(aten.mm.default, matrix, tensor(4, 5)).after) == [[CUBLAS]]


def test_other_matrices_are_copied():
    matrix = tensor(3, 8)[:, ::2]
    assert described(made(aten.mm.default, matrix, tensor(4, 5)).after) == [[copy_of(3, 4), CUBLAS]]
    expanded = tensor(1, 1, 1).expand(2, 3, 4)
    assert described(made(aten.bmm.default, expanded, tensor(2, 4, 5)).after) == [[copy_of(2, 3, 4), CUBLAS]]


def test_efficient_attention_in_float32_sums_rows_by_operators_and_then_takes_its_tiles():
    query = tensor(4, 6, 2, 8).transpose(1, 2)
    found = made(
        aten._scaled_dot_product_efficient_attention_backward.default,
        *(query, query, query, query, None, query),
    )
    product, sums, row_sums = found.after[0]
    assert described(found.before) == []
    assert [math.prod(r.scratch.dimensions) for r in (product, sums, row_sums)] == [4 * 2 * 6 * 8, 48, 48]
    assert [r.lifetime for r in (product, sums)] == [Lifetime.STAGE] * 2
    assert described(found.after[1:]) == [[("attention", "efficient_query_gradient", (4, 2, 6, 8), 4)]]


def test_a_gradient_that_is_not_in_the_kernels_layout_is_copied():
    query = tensor(4, 2, 6, 8)
    found = made(
        aten._scaled_dot_product_efficient_attention_backward.default,
        *(query, query, query, query, None, query),
    )
    assert described(found.before) == [[copy_of(4, 6, 2, 8)]]


def test_flash_attention_sums_the_querys_gradient_in_float32():
    query = tensor(4, 6, 2, 8, dtype=torch.bfloat16).transpose(1, 2)
    found = made(aten._scaled_dot_product_flash_attention_backward.default, *[query] * 6)
    assert described(found.before) == []
    assert described(found.after) == [
        [("attention", "flash_rows", (4, 2, 6), 4), ("attention", "flash_query_gradient", (4, 2, 6, 8), 4)]
    ]


def test_heads_that_share_keys_get_gradients_of_their_own_first():
    query = tensor(4, 6, 8, 16, dtype=torch.bfloat16).transpose(1, 2)
    key = tensor(4, 5, 2, 16, dtype=torch.bfloat16).transpose(1, 2)
    found = made(
        aten._scaled_dot_product_flash_attention_backward.default, query, query, key, key, query, None
    )
    assert described(found.after)[0][2:] == [("attention", "elements", (4, 8, 5, 16), 2)] * 2


def test_layer_norm_copies_what_is_not_dense():
    image = tensor(4, 16, 5, 5).permute(0, 2, 3, 1)
    found = made(aten.native_layer_norm.default, image, [16], tensor(16), tensor(16), 1e-6)
    assert described(found.before) == [[copy_of(4, 5, 5, 16)]]
    assert described(found.after) == []


def test_layer_norm_backward_has_partial_sums_for_weight_and_bias():
    rows = tensor(4, 7, 16)
    found = made(
        aten.native_layer_norm_backward.default,
        *(rows, rows, [16], tensor(4, 7, 1), tensor(4, 7, 1), tensor(16), tensor(16), [True, True, True]),
    )
    assert described(found.before) == []
    assert described(found.after) == [[("layer_norm", "layer_norm_tiles", (4, 7, 16), 4)] * 2]


def convolution(image: torch.Tensor, weight: torch.Tensor, **options: Any) -> Recipe:
    groups = options.pop("groups", 1)
    return made(aten.convolution.default, image, weight, None, [1], [0], [1], False, [0], groups)


def test_a_convolution_copies_a_strided_input_before_its_output():
    image = tensor(4, 3, 8, 9)
    assert described(convolution(image, tensor(5, 3, 1, 1)).before) == []
    strided = image.transpose(2, 3)
    assert described(convolution(strided, tensor(5, 3, 1, 1)).before) == [[copy_of(4, 3, 9, 8)]]


def test_a_channels_last_input_takes_the_weight_with_it():
    image = tensor(4, 3, 8, 9).to(memory_format=torch.channels_last)
    assert described(convolution(image, tensor(5, 3, 2, 2)).before) == [[copy_of(5, 3, 2, 2)]]
    weight = tensor(5, 3, 2, 2).to(memory_format=torch.channels_last)
    assert described(convolution(image, weight).before) == []


def test_a_gradient_in_another_layout_is_copied_into_that_of_the_input():
    image, weight = tensor(4, 3, 8, 9), tensor(5, 3, 2, 2)
    gradient = tensor(4, 5, 7, 8).to(memory_format=torch.channels_last)
    found = made(
        aten.convolution_backward.default,
        *(gradient, image, weight, None, [1], [0], [1], False, [0], 1, [True, True, False]),
    )
    assert described(found.before) == [[copy_of(4, 5, 7, 8)]]


def test_batch_norm_backward_copies_an_expanded_gradient():
    image = tensor(4, 3, 8, 9)
    gradient = tensor(4, 3, 1, 1).expand(4, 3, 8, 9)
    found = made(aten.native_batch_norm_backward.default, gradient, image)
    assert described(found.before) == [[copy_of(4, 3, 8, 9)]]
    assert described(made(aten.native_batch_norm_backward.default, image, image).before) == []


def test_an_embeddings_gradient_sorts_before_its_output_and_sums_after_it():
    indices = tensor(4, 128, dtype=torch.int64)
    found = made(aten.embedding_dense_backward.default, tensor(4, 128, 16), indices, 50, -1, False)
    sort = ("embedding_backward", "embedding_indices", (4, 128), 8)
    assert described(found.before) == [[sort] * 5]
    assert [r.lifetime for r in found.before[1]].count(Lifetime.STAGE) == 3
    assert described(found.after) == [
        [("embedding_backward", "embedding_segments", (50, 4, 128), 8)] * 3
        + [("embedding_backward", "embedding_partial_sums", (50, 16, 4, 128), 4)]
    ]


def test_only_indexing_that_accumulates_sorts():
    table, rows = tensor(50, 16), [None, tensor(4, 1, dtype=torch.int64), tensor(7, dtype=torch.int64)]
    values = tensor(4, 7)
    assert described(made(aten.index_put.default, table, rows, values).before) == []
    found = made(aten.index_put.default, table, rows, values, accumulate=True)
    one = ("index_backward", "elements", (4, 7), 8)
    assert described(found.before) == [[one], [one] * 5]


def test_softmax_takes_the_product_of_its_output_and_gradient_in_backward():
    grad, output = tensor(3, 4), tensor(4, 3).t()
    found = made(aten._softmax_backward_data.default, grad, output, -1, torch.float32)
    assert described(found.before) == []
    assert described(found.after) == [[("softmax_backward", "elements", (3, 4), 4), copy_of(3, 4)]]


def test_sorting_takes_buffers_by_the_last_dimension_alone():
    rows = tensor(4, 8192)
    sort = ("sort", "sort", (4, 8192), 4)
    assert described(made(aten.sort.default, rows, -1).after) == [[sort]]
    assert described(made(aten.sort.stable, rows, True, 1).after) == [[sort]]
    assert described(made(aten.sort.default, rows, 0).after) == []


def test_sums_over_rows_are_shared_among_blocks_and_sums_of_rows_take_next_to_nothing():
    rows = tensor(64, 8)
    shared = ("reductions", "reduction", (64, 8, 8), 4)
    assert described(made(aten.sum.dim_IntList, rows, [0]).after) == [[shared]]
    assert described(made(aten.mean.dim, tensor(4, 64, 8), [0, 1]).after) == [
        [("reductions", "reduction", (256, 8, 8), 4)]
    ]
    assert described(made(aten.sum.dim_IntList, rows, [1]).after) == []
    assert described(made(aten.sum.default, rows).after) == []
    assert described(made(aten.sum.dim_IntList, tensor(), [0]).after) == []
