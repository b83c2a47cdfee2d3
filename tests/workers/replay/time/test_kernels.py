"""What operators run: kernels, each with its class, products and bytes."""

from __future__ import annotations

import pytest
import torch

from autofit_workers.replay.time import kernels
from autofit_workers.replay.time.collectives import Exchange
from autofit_workers.replay.time.constants import constants
from autofit_workers.replay.time.kernels import EXCHANGES, KernelClass, Product, kernel_of, kernels_of
from autofit_workers.spec.work import Convolution, ConvPass, Group, Layout, Operand, Work

ROWS, WEIGHT, OUTPUT = Operand((6, 4), "float16"), Operand((4, 5), "float16"), Operand((6, 5), "float16")
MAP = Operand((2, 8, 4, 4), "float32")
OF_CHANNELS = Operand((8,), "float32")


def convolution(channels: int, filters: int, groups: int = 1, **changes) -> Convolution:
    values = {
        "conv_pass": ConvPass.FPROP,
        "input_shape": (2, channels, 8, 8),
        "weight_shape": (filters, channels // groups, 3, 3),
        "output_shape": (2, filters, 8, 8),
        "stride": (1, 1),
        "padding": (1, 1),
        "dilation": (1, 1),
        "groups": groups,
        "dtype": "float16",
        "element_bytes": 2,
    }
    return Convolution(**{**values, **changes})


def test_a_product_has_the_sides_of_its_matrices() -> None:
    (kernel,) = kernels_of(Work("aten.mm", (ROWS, WEIGHT), (OUTPUT,)))
    assert kernel.kind is KernelClass.MATMUL
    assert kernel.product == Product(6, 5, 4)
    assert kernel.moved_bytes == 2 * (6 * 4 + 4 * 5 + 6 * 5)


def test_an_operator_that_is_not_known_is_a_class_of_its_own_unless_it_goes_element_by_element() -> None:
    (kernel,) = kernels_of(Work("aten.erfinv", (ROWS,), (ROWS,), flags=("pointwise",)))
    assert kernel.kind is KernelClass.ELEMENTWISE
    assert kernel.moved_bytes == 2 * ROWS.num_bytes
    (unknown,) = kernels_of(Work("aten._grouped_mm", (ROWS, WEIGHT), (OUTPUT,)))
    assert unknown.kind is KernelClass.OTHER


@pytest.mark.parametrize(
    ("operator", "kind"),
    [("_C.rms_norm", KernelClass.LAYER_NORM), ("_C.silu_and_mul", KernelClass.ELEMENTWISE)],
)
def test_kernels_of_vllm_go_one_by_one_as_what_they_are(operator, kind) -> None:
    (kernel,) = kernels_of(Work(operator, (ROWS,), (ROWS,)))
    assert (kernel.kind, kernel.variant) == (kind, "one_by_one")


def test_a_known_operator_that_is_called_in_another_way_is_not_known() -> None:
    (kernel,) = kernels_of(Work("aten.mm", (ROWS,), (OUTPUT,)))
    assert kernel.kind is KernelClass.OTHER


def test_a_copy_to_the_host_is_a_transfer() -> None:
    (kernel,) = kernels_of(Work("aten._to_copy", (ROWS,), (), flags=("transfer",)))
    assert (kernel.kind, kernel.moved_bytes) == (KernelClass.TRANSFER, ROWS.num_bytes)


def test_lists_are_launched_by_so_many_tensors() -> None:
    pair = (ROWS,) * 33
    (kernel,) = kernels_of(Work("aten._foreach_add_.List", pair * 2, pair))
    assert kernel.num_launches == 2
    assert kernel.moved_bytes == 3 * 33 * ROWS.num_bytes


def test_each_step_of_a_recurrent_layer_multiplies_with_all_weights() -> None:
    sequence, weight = Operand((7, 2, 16), "float32"), Operand((64, 16), "float32")
    (kernel,) = kernels_of(Work("aten._cudnn_rnn", (sequence, weight, weight), (sequence,)))
    assert kernel.kind is KernelClass.RECURRENT
    assert kernel.product.flops == 2 * (7 * 2) * 2 * 64 * 16


def test_a_norm_that_trains_reads_its_input_twice() -> None:
    inputs, outputs = (MAP, OF_CHANNELS), (MAP, OF_CHANNELS, OF_CHANNELS)
    (trains,) = kernels_of(Work("aten.native_batch_norm", inputs, outputs, flags=("training",)))
    (infers,) = kernels_of(Work("aten.native_batch_norm", inputs, outputs))
    assert trains.moved_bytes - infers.moved_bytes == MAP.num_bytes


def test_a_copy_into_another_order_is_another_class() -> None:
    last = Operand(MAP.shape, "float32", Layout.CHANNELS_LAST)
    (reorder,) = kernels_of(Work("aten.clone", (MAP,), (last,)))
    (copy,) = kernels_of(Work("aten.clone", (MAP,), (MAP,)))
    assert (reorder.kind, copy.kind) == (KernelClass.REORDER, KernelClass.COPY)


def test_a_causal_attention_makes_half_of_the_products() -> None:
    heads = Operand((1, 2, 64, 32), "bfloat16")
    name = "aten._scaled_dot_product_flash_attention"
    (whole,) = kernels_of(Work(name, (heads, heads, heads), (heads,)))
    (causal,) = kernels_of(Work(name, (heads, heads, heads), (heads,), flags=("causal",)))
    assert 2 * causal.product.flops == whole.product.flops


@pytest.mark.parametrize("conv_pass", list(ConvPass))
def test_every_pass_of_a_convolution_makes_the_same_products(conv_pass) -> None:
    kernel = kernel_of(convolution(16, 32, conv_pass=conv_pass))
    assert kernel.product.flops == 2 * (2 * 8 * 8) * 32 * 16 * 9


def test_tensor_cores_want_channels_last_and_whole_vectors() -> None:
    assert kernel_of(convolution(16, 32)).copied_bytes > 0
    assert kernel_of(convolution(16, 32, channels_last=True)).copied_bytes == 0
    assert kernel_of(convolution(15, 32)).variant == "contiguous unaligned"
    assert kernel_of(convolution(3, 32)).product.k == 8 * 9


def test_groups_are_told_apart_by_the_kernels_that_there_are() -> None:
    assert kernel_of(convolution(64, 64, groups=64)).kind is KernelClass.DEPTHWISE_CONVOLUTION
    grouped = kernel_of(convolution(60, 60, groups=3))
    assert (grouped.kind, grouped.variant) == (KernelClass.GROUPED_CONVOLUTION, "contiguous")


@pytest.mark.parametrize(
    ("operators", "kind"),
    [
        ("mm addmm bmm baddbmm", KernelClass.MATMUL),
        ("native_layer_norm native_group_norm _fused_rms_norm", KernelClass.LAYER_NORM),
        ("native_batch_norm cudnn_batch_norm native_batch_norm_backward", KernelClass.BATCH_NORM),
        ("_softmax _log_softmax _softmax_backward_data", KernelClass.SOFTMAX),
        ("max_pool2d_with_indices avg_pool2d upsample_bilinear2d_backward", KernelClass.POOL),
        ("sum mean var amax argmax linalg_vector_norm nll_loss_forward topk", KernelClass.REDUCTION),
        ("cat constant_pad_nd clone stack", KernelClass.COPY),
        ("embedding embedding_dense_backward gather scatter_add _sparse_addmm", KernelClass.INDEX),
        ("zeros fill_ randn native_dropout where masked_fill_", KernelClass.ELEMENTWISE),
        ("_cudnn_rnn mkldnn_rnn_layer_backward", KernelClass.RECURRENT),
        ("_foreach_mul_ _fused_adamw_", KernelClass.OPTIMIZER),
        ("_scaled_dot_product_efficient_attention", KernelClass.ATTENTION),
    ],
)
def test_an_operator_is_of_the_class_of_what_bounds_it(operators, kind) -> None:
    for operator in operators.split():
        kernel, *_ = kernels_of(Work(f"aten.{operator}.default", (MAP, MAP, MAP), (MAP,)))
        assert kernel.kind is kind, operator


def test_every_operator_with_a_rule_is_one_of_pytorch() -> None:
    assert [name for name in kernels._MAKERS if not hasattr(torch.ops.aten, name)] == []


def test_an_operator_of_one_pass_reads_its_inputs_and_writes_its_outputs_once() -> None:
    large, small = Operand((10, 10), "float32"), Operand((10,), "bfloat16")
    (reduced,) = kernels_of(Work("aten.sum", (large,), (small,)))
    assert (reduced.moved_bytes, reduced.dtype) == (400 + 20, "float32")
    (cast,) = kernels_of(Work("aten.where", (large,), (small,)))
    assert (cast.moved_bytes, cast.dtype) == (420, "bfloat16"), "it computes in what it returns"
    (drawn,) = kernels_of(Work("aten.randn", (), (large,)))
    assert (drawn.kind, drawn.moved_bytes, drawn.dtype) == (KernelClass.ELEMENTWISE, 400, "float32")
    (made,) = kernels_of(Work("_C.silu_and_mul", (large,), (small,)))
    assert (made.moved_bytes, made.dtype, made.product) == (420, "float32", None)
    assert (made.num_launches, made.copied_bytes) == (1, 0)


def test_rotary_embeddings_of_vllm_go_element_by_element() -> None:
    (kernel,) = kernels_of(Work("_C.rotary_embedding", (ROWS,), (ROWS,)))
    assert (kernel.kind, kernel.variant) == (KernelClass.ELEMENTWISE, "one_by_one")


def test_a_collective_has_its_exchange_its_ranks_and_the_gathered_bytes() -> None:
    shard, whole = Operand((8,), "bfloat16"), Operand((64,), "bfloat16")
    (kernel,) = kernels_of(Work("c10d._allgather_base_", (shard,), (whole,), group=Group(8)))
    assert (kernel.kind, kernel.variant, kernel.group) == (
        KernelClass.COLLECTIVE, Exchange.ALL_GATHER, Group(8)
    )  # fmt: skip
    assert (kernel.moved_bytes, kernel.dtype) == (128, "bfloat16")


def test_tf32_is_for_products_of_float32_and_only_where_it_is_allowed() -> None:
    full = Operand((8, 8), "float32")
    product, half = Work("aten.mm", (full, full), (full,)), Work("aten.mm", (ROWS, WEIGHT), (OUTPUT,))
    assert [kernels_of(product, allow_tf32=allowed)[0].dtype for allowed in (False, True)] == [
        "float32", "tf32"
    ]  # fmt: skip
    assert kernels_of(product)[0].dtype == "float32"
    assert kernels_of(half, allow_tf32=True)[0].dtype == "float16"
    assert kernels_of(Work("aten.sum", (full,), (full,)), allow_tf32=True)[0].dtype == "float32"


@pytest.mark.parametrize(("length", "reads"), [(1024, 1.0), (1025, 1.6), (6400, 1.6), (6401, 2.2)])
def test_softmax_reads_its_rows_so_often_as_they_are_long(length, reads) -> None:
    rows = Operand((10, length), "float32")
    (kernel,) = kernels_of(Work("aten._softmax", (rows, OF_CHANNELS), (rows,)))
    assert kernel.moved_bytes == int(reads * 40 * length) + 40 * length
    assert kernel.dtype == "float32"


# ── copies ──────────────────────────────────────────────────────────────────────────────────────


def test_a_copy_reads_its_source_and_writes_its_result() -> None:
    target, source = Operand((4, 4), "float16"), Operand((4, 4), "float32")
    (kernel,) = kernels_of(Work("aten.copy_", (target, source), (target,)))
    assert (kernel.kind, kernel.moved_bytes, kernel.dtype) == (KernelClass.COPY, 64 + 32, "float16")
    (alone,) = kernels_of(Work("aten.clone", (), (target,)))
    assert alone.moved_bytes == 2 * 32


def test_a_copy_that_spreads_few_elements_is_no_reordering() -> None:
    row = Operand((1, 8, 1, 1), "float32", Layout.CHANNELS_LAST)
    (kernel,) = kernels_of(Work("aten.copy_", (MAP, row), (MAP,)))
    assert (kernel.kind, kernel.moved_bytes) == (KernelClass.COPY, row.num_bytes + MAP.num_bytes)


def test_fully_sharded_copies_move_the_shards_of_a_rank() -> None:
    small, other, whole = Operand((3,), "float16"), Operand((5,), "float16"), Operand((16,), "float32")
    (copied_in,) = kernels_of(Work("fsdp.all_gather_copy_in", (small, other), (other, whole)))
    assert (copied_in.moved_bytes, copied_in.dtype) == (2 * 10, "float16"), (
        "a rank's part of what is gathered"
    )
    (together,) = kernels_of(Work("fsdp.chunk_cat", (small, other, whole), ()))
    assert (together.moved_bytes, together.dtype) == (6 + 10 + 64, "float32")
    (apart,) = kernels_of(Work("fsdp.split_with_sizes_copy", (whole, small, other), ()))
    assert (apart.moved_bytes, apart.dtype) == (2 * 64, "float32")
    (plain,) = kernels_of(Work("fsdp.copy_", (whole, whole), (whole,)))
    assert plain.moved_bytes == 128
    assert {each.kind for each in (copied_in, together, apart, plain)} == {KernelClass.COPY}


def test_indexing_reads_the_places_and_what_it_returns_alone() -> None:
    table, places, rows = Operand((1000, 8), "float16"), Operand((5,), "int64"), Operand((5, 8), "float16")
    (kernel,) = kernels_of(Work("aten.embedding", (table, places), (rows,)))
    assert (kernel.kind, kernel.moved_bytes) == (KernelClass.INDEX, 2 * 80 + 40)
    (written,) = kernels_of(Work("aten.index_put", (places, table), (rows,)))
    assert written.dtype == "float16", "the type of what it returns"
    (in_place,) = kernels_of(Work("aten.index_add", (rows, places), ()))
    assert (in_place.kind, in_place.dtype) == (KernelClass.INDEX, "float16")


# ── products ────────────────────────────────────────────────────────────────────────────────────


def test_products_of_a_batch_are_made_as_often_as_it_is_large() -> None:
    left, right, out = (Operand((2, 3, *shape), "float16") for shape in ((4, 5), (5, 6), (4, 6)))
    (kernel,) = kernels_of(Work("aten.bmm", (left, right), (out,)))
    assert kernel.product == Product(4, 6, 5, batch=6)
    assert kernel.product.flops == 2 * 6 * 4 * 6 * 5
    assert kernel.variant == "batched"
    (added,) = kernels_of(Work("aten.addmm", (OF_CHANNELS, ROWS, WEIGHT), (OUTPUT,)))
    assert (added.product, added.variant, added.dtype) == (Product(6, 5, 4), "", "float16")
    assert added.moved_bytes == 2 * (24 + 20 + 30), "the bias is next to nothing"


@pytest.mark.parametrize(
    ("name", "variant", "products"),
    [
        ("_scaled_dot_product_flash_attention", "forward", 2),
        ("_scaled_dot_product_flash_attention_backward", "backward", 5),
    ],
)
def test_attention_multiplies_every_query_with_every_key_of_its_head(name, variant, products) -> None:
    gradient = Operand((1, 2, 64, 16), "float32")
    query, key = Operand((3, 2, 64, 32), "bfloat16"), Operand((3, 2, 48, 32), "bfloat16")
    inputs = (gradient, query, key, key) if variant == "backward" else (query, key, key)
    (kernel,) = kernels_of(Work(f"aten.{name}", inputs, (query,)))
    assert kernel.product == Product(64, 48, products * 32, batch=6)
    assert (kernel.variant, kernel.dtype) == (variant, "bfloat16")
    assert kernel.moved_bytes == sum(each.num_bytes for each in (*inputs, query))


def test_attention_of_heads_without_width_makes_one_product_still() -> None:
    heads = Operand((1, 1, 4, 0), "float16")
    (kernel,) = kernels_of(Work("aten._scaled_dot_product_flash_attention", (heads,) * 3, (heads,)))
    assert kernel.product == Product(4, 4, 1)


def test_recurrent_layers_multiply_twice_as_much_in_backward() -> None:
    sequence, weight, bias = (
        Operand((7, 2, 16), "float16"),
        Operand((64, 16), "float16"),
        Operand((64,), "float16"),
    )
    forward, backward = (
        kernels_of(Work(name, (sequence, weight, bias), (sequence,)))[0]
        for name in ("aten._cudnn_rnn", "aten._cudnn_rnn_backward")
    )
    assert forward.product == Product(14, 64, 16)
    assert backward.product.flops == 2 * forward.product.flops
    assert forward.moved_bytes == 2 * (2 * 224 + 1024 + 64)
    assert forward.dtype == "float16"


# ── norms, lists ────────────────────────────────────────────────────────────────────────────────


def test_batch_norm_reads_its_map_twice_in_training_and_writes_it_once() -> None:
    last = Operand(MAP.shape, "float32", Layout.CHANNELS_LAST)
    (infers,) = kernels_of(Work("aten.native_batch_norm", (MAP, OF_CHANNELS), (MAP, OF_CHANNELS)))
    assert (infers.moved_bytes, infers.dtype, infers.variant) == (2 * MAP.num_bytes, "float32", "")
    (backward,) = kernels_of(Work("aten.native_batch_norm_backward", (OF_CHANNELS, last, last), (last,)))
    assert (backward.moved_bytes, backward.variant) == (5 * MAP.num_bytes, "channels_last")
    (kept,) = kernels_of(Work("aten.cudnn_batch_norm", (last, OF_CHANNELS), (last,), flags=("training",)))
    assert (kept.moved_bytes, kept.variant) == (3 * MAP.num_bytes, "channels_last")


def test_layer_norm_backward_sums_for_its_weights_in_a_kernel_of_its_own() -> None:
    gradient, source = Operand((6, 4), "float16"), Operand((6, 4), "float32")
    norm, sums = kernels_of(
        Work("aten.native_layer_norm_backward", (gradient, source, OF_CHANNELS, source), (gradient,))
    )
    assert (norm.kind, norm.moved_bytes) == (KernelClass.LAYER_NORM, 48 + 96 + 48)
    assert (sums.kind, sums.moved_bytes) == (KernelClass.REDUCTION, 48 + 96)
    assert norm.dtype == sums.dtype == "float16"


def test_fused_optimizers_write_all_that_they_read() -> None:
    (kernel,) = kernels_of(Work("aten._fused_adamw_", (ROWS,) * 4, ()))
    assert (kernel.moved_bytes, kernel.num_launches, kernel.dtype) == (2 * 4 * 48, 1, "float16")
    for num_tensors, num_launches in ((32, 1), (33, 2), (65, 3)):
        (lists,) = kernels_of(Work("aten._foreach_zero_", (), (ROWS,) * num_tensors))
        assert (lists.num_launches, lists.dtype) == (num_launches, "float16")


# ── convolutions ────────────────────────────────────────────────────────────────────────────────


def test_the_bias_of_a_convolution_is_added_and_its_gradient_summed_in_kernels_of_their_own() -> None:
    bias, weight = Operand((8,), "float32"), Operand((8, 8, 3, 3), "float32")
    calls = (convolution(8, 8, dtype="float32", element_bytes=4),)
    with_bias = kernels_of(Work("aten.convolution", (MAP, weight, bias), (MAP,), convolutions=calls))
    without = kernels_of(Work("aten.convolution", (MAP, weight), (MAP,), convolutions=calls))
    assert with_bias[:-1] == without == (kernel_of(*calls),)
    added = with_bias[-1]
    assert (added.kind, added.moved_bytes, added.dtype) == (
        KernelClass.ELEMENTWISE, 2 * MAP.num_bytes, "float32"
    )  # fmt: skip
    name, inputs = "aten.convolution_backward", (MAP, MAP, weight)
    summed = kernels_of(Work(name, inputs, (MAP, weight, bias), convolutions=calls))
    assert kernels_of(Work(name, inputs, (MAP, weight), convolutions=calls)) == without
    assert summed[:-1] == without
    assert (summed[-1].kind, summed[-1].moved_bytes, summed[-1].dtype) == (
        KernelClass.REDUCTION, MAP.num_bytes, "float32"
    )  # fmt: skip


def test_convolutions_of_float32_have_a_switch_of_tf32_of_their_own() -> None:
    call = convolution(8, 8, dtype="float32")
    work = Work("aten.convolution", (MAP, MAP), (MAP,), convolutions=(call,))
    found = {allowed: kernels_of(work, conv_tf32=allowed)[0] for allowed in (True, False)}
    assert {allowed: kernel.dtype for allowed, kernel in found.items()} == {True: "tf32", False: "float32"}
    assert kernels_of(work)[0] == kernel_of(call) == found[True]
    assert kernels_of(work, allow_tf32=True, conv_tf32=False)[0].dtype == "float32"
    assert kernel_of(convolution(8, 8)).dtype == "float16"
    assert (found[True].copied_bytes > 0, found[False].copied_bytes) == (True, 0)


STRIDED = {"input_shape": (2, 16, 8, 8), "output_shape": (2, 32, 4, 4), "stride": (2, 2)}


def test_a_convolution_moves_its_input_its_output_and_its_weight() -> None:
    half = kernel_of(convolution(16, 32, **STRIDED))
    assert half.moved_bytes == 2 * (2 * 16 * 64 + 2 * 32 * 16 + 32 * 16 * 9)
    full = kernel_of(convolution(16, 32, **STRIDED, dtype="float32", element_bytes=4))
    assert full.moved_bytes == 2 * half.moved_bytes


@pytest.mark.parametrize(
    ("conv_pass", "product", "copied_bytes"),
    [
        (ConvPass.FPROP, Product(2 * 16, 32, 16 * 9), 2 * 2 * 2 * 16 * 64),
        (ConvPass.DGRAD, Product(2 * 64, 16, 32 * 9 * 16 // 64), 2 * 2 * 2 * 32 * 16),
        (ConvPass.WGRAD, Product(32, 16 * 9, 2 * 16), 2 * 2 * 2 * (16 * 64 + 32 * 16)),
    ],
)
def test_a_pass_is_its_product_of_matrices_after_a_copy_of_what_it_reads(
    conv_pass, product, copied_bytes
) -> None:
    kernel = kernel_of(convolution(16, 32, conv_pass=conv_pass, **STRIDED))
    assert kernel.product == product
    assert kernel.copied_bytes == copied_bytes
    assert (kernel.kind, kernel.variant) == (KernelClass.CONVOLUTION, f"{conv_pass} contiguous")
    last = kernel_of(convolution(16, 32, conv_pass=conv_pass, **STRIDED, channels_last=True))
    assert (last.product, last.variant) == (product, f"{conv_pass} channels_last")


def test_tensor_cores_read_channels_in_vectors_of_eight() -> None:
    assert kernel_of(convolution(9, 33)).product == Product(2 * 64, 40, 16 * 9)
    assert kernel_of(convolution(9, 33, dtype="float32"), allow_tf32=False).product == Product(
        2 * 64, 33, 9 * 9
    )
    grouped = kernel_of(convolution(12, 12, groups=4))
    assert grouped.product == Product(2 * 64, 3, 3 * 9, batch=4), "groups are not filled up"


@pytest.mark.parametrize(
    ("channels", "filters", "is_unaligned"),
    [(16, 32, False), (15, 32, True), (16, 31, True), (4, 31, False), (5, 32, True), (3, 32, False)],
)
def test_channels_that_fill_no_vector_are_another_variant_unless_they_are_those_of_images(
    channels, filters, is_unaligned
) -> None:
    variant = kernel_of(convolution(channels, filters)).variant
    assert variant == ("contiguous unaligned" if is_unaligned else "fprop contiguous")
    exact = kernel_of(convolution(channels, filters, dtype="float32"), allow_tf32=False)
    assert exact.variant == "fprop contiguous"


def test_depthwise_convolutions_are_not_copied_into_another_order() -> None:
    depthwise = kernel_of(convolution(16, 16, groups=16))
    assert (depthwise.copied_bytes, depthwise.variant) == (0, "contiguous")
    assert depthwise.product == Product(2 * 64, 1, 9, batch=16)
    assert kernel_of(convolution(16, 16, groups=16, channels_last=True)).variant == "channels_last"
    grey = kernel_of(convolution(1, 8, dtype="float32"), allow_tf32=False)
    assert grey.kind is KernelClass.CONVOLUTION, "one channel is no group"
    grouped = kernel_of(convolution(16, 16, groups=8))
    assert (grouped.kind, grouped.copied_bytes > 0) == (KernelClass.GROUPED_CONVOLUTION, True)


def test_passes_of_groups_are_told_apart_in_channels_last() -> None:
    def variants(channels: int, *, channels_last: bool = True) -> list[str]:
        calls = (
            convolution(channels, channels, groups=8, channels_last=channels_last, conv_pass=each)
            for each in ConvPass
        )
        return [kernel_of(call).variant for call in calls]

    backward = "backward channels_last"
    assert variants(8 * 48) == ["fprop channels_last", backward, backward]
    assert variants(8 * 56) == ["fprop channels_last", f"wide {backward}", f"wide {backward}"]
    assert set(variants(8 * 56, channels_last=False)) == {"contiguous"}


def test_what_groups_are_timed_by_is_kept() -> None:
    kernel = kernel_of(convolution(128, 128, groups=8, dilation=(1, 2)))
    assert (kernel.num_taps, kernel.is_strided, kernel.is_dilated) == (9, False, True)
    assert kernel_of(convolution(128, 128, groups=8, stride=(1, 2))).is_strided


def test_the_gradient_of_a_single_position_multiplies_with_every_tap() -> None:
    at_one = {"input_shape": (2, 16, 1, 1), "output_shape": (2, 32, 1, 1)}
    kernel = kernel_of(convolution(16, 32, conv_pass=ConvPass.DGRAD, **at_one))
    assert kernel.product == Product(2, 16, 32 * 9)


def test_constants_are_of_classes_that_there_are() -> None:
    named = {name.partition(" ")[0] for name in constants().classes}
    assert named == set(KernelClass) - EXCHANGES
    assert {name.partition(" ")[0] for name in constants().newer_classes} <= named


def test_a_strided_pass_without_any_positions_has_a_product_still() -> None:
    empty = convolution(8, 8, conv_pass=ConvPass.DGRAD, input_shape=(2, 8, 0, 0), output_shape=(2, 8, 0, 0))
    assert kernel_of(empty).product == Product(0, 8, 1)


def test_a_kernel_that_the_compiler_fused_reads_and_writes_each_tensor_once() -> None:
    work = Work("inductor.poi_fused_add_gelu", (MAP, MAP), (MAP,), flags=("pointwise",))
    (kernel,) = kernels_of(work)
    assert kernel.kind is KernelClass.ELEMENTWISE
    assert kernel.moved_bytes == 3 * MAP.num_bytes
    (reducing,) = kernels_of(Work("inductor.red_fused_sum", (MAP,), (MAP,)))
    assert reducing.kind is KernelClass.REDUCTION
