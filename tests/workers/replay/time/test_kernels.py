"""What operators run: kernels, each with its class, products and bytes."""

from __future__ import annotations

import pytest

from autofit_workers.replay.time.kernels import KernelClass, Product, kernel_of, kernels_of
from autofit_workers.spec.work import Convolution, ConvPass, Layout, Operand, Work

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
    own, plain = convolution(128, 128, groups=8), convolution(60, 60, groups=3)
    assert kernel_of(own).variant == "contiguous own"
    assert kernel_of(plain).variant == "contiguous"
    assert kernel_of(convolution(128, 128, groups=8, dilation=(2, 2))).variant == "contiguous"
