"""What PyTorch refuses: many operators for the number of elements, attention for its samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.replay.curve.refusals import (
    MOST_SAMPLES,
    OPERATORS,
    too_many_elements,
    why_not_convolved,
    why_not_taken,
)
from autofit_workers.replay.plans.workspace import MOST_ELEMENTS, goes_to_cudnn
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Verdict
from autofit_workers.spec.trace import Allocation, Category, Trace
from autofit_workers.spec.work import Convolution
from autofit_workers.tracing.recording.counted import COUNTED, counted_shape
from tests.workers.replay.plan_tables import variant

# blocks.1.0.conv_dw of efficientnet_b3 at 320 pixels, one sample.
LAYER = variant(
    input_shape=(1, 144, 160, 160),
    weight_shape=(144, 1, 3, 3),
    output_shape=(1, 144, 80, 80),
    stride=(2, 2),
    groups=144,
    dtype="float16",
    element_bytes=2,
)
LAST = MOST_ELEMENTS // (144 * 160 * 160)


BEFORE, SINCE = (2, 8), (2, 9)
FLASH = "aten._scaled_dot_product_flash_attention"
EFFICIENT = "aten._scaled_dot_product_efficient_attention"
AVERAGE_POOL, MAX_POOL = "aten.avg_pool2d", "aten.max_pool2d_with_indices"


def refused(call: Convolution, release: tuple[int, int] = BEFORE, **conditions: Any) -> bool:
    return too_many_elements(call, Conditions(**conditions), release) is not None


def test_the_direct_kernel_has_a_last_batch() -> None:
    assert not refused(LAYER.of_samples(LAST))
    num_elements = too_many_elements(LAYER.of_samples(LAST + 1), Conditions(), BEFORE)
    assert num_elements == (LAST + 1) * 144 * 160 * 160


def test_what_it_cannot_index_is_cudnns_in_newer_releases() -> None:
    call = LAYER.of_samples(LAST + 1)
    assert not refused(call, SINCE)
    assert goes_to_cudnn(call, 80, SINCE)
    assert not goes_to_cudnn(LAYER.of_samples(LAST), 80, SINCE)
    assert refused(call, SINCE, conv_algo="native")
    assert refused(call, SINCE, torch_release=BEFORE)


def test_the_release_looks_at_the_input_alone() -> None:
    widened = dataclasses.replace(LAYER, weight_shape=(720, 1, 3, 3), output_shape=(1, 720, 80, 80))
    assert refused(widened.of_samples(LAST), SINCE)


@pytest.mark.parametrize(
    "change",
    [
        {"channels_last": True},
        {"stride": (1, 1), "output_shape": (1, 144, 160, 160)},
        {"groups": 1, "weight_shape": (144, 144, 3, 3)},
    ],
    ids=["channels-last", "fast-in-cudnn", "dense"],
)
def test_what_goes_to_cudnn_has_none(change: dict[str, object]) -> None:
    call = dataclasses.replace(LAYER, **change).of_samples(4 * LAST)  # type: ignore[arg-type]
    assert not refused(call)


def test_on_amds_cards_miopen_has_every_convolution() -> None:
    call = LAYER.of_samples(LAST + 1)
    assert not refused(call, architecture="gfx942")
    assert refused(call, architecture="gfx942", conv_algo="native")


def test_without_cudnn_the_layout_does_not_help() -> None:
    call = dataclasses.replace(LAYER, channels_last=True).of_samples(LAST + 1)
    assert refused(call, conv_algo="native")


@pytest.mark.parametrize(
    ("release", "refuses"), [((2, 8), False), ((2, 9), True), ((2, 10), True), ((2, 11), False)]
)
def test_what_cudnn_9_10_cannot_index_in_channels_last_is_refused(
    release: tuple[int, int], refuses: bool
) -> None:
    call = dataclasses.replace(LAYER, channels_last=True)
    assert not refused(call.of_samples(LAST), release)
    assert refused(call.of_samples(LAST + 1), release) is refuses
    said = why_not_convolved(call.of_samples(LAST + 1), Conditions(), release)
    assert said is None or said.endswith("try --memory-format contiguous")


def test_a_batch_in_pieces_is_indexed_piece_by_piece() -> None:
    assert not refused(LAYER.of_samples(4 * LAST), conv_algo="chunked:8")


def test_a_refused_convolution_says_how_many_elements_and_what_to_do() -> None:
    call = LAYER.of_samples(LAST + 1)
    said = why_not_convolved(call, Conditions(), BEFORE)
    assert said is not None
    assert f"{(LAST + 1) * 144 * 160 * 160:,} elements" in said
    assert "try --conv-algo cudnn" in said
    assert why_not_convolved(LAYER.of_samples(LAST), Conditions(), BEFORE) is None


@pytest.mark.parametrize(
    ("operator", "release", "refuses"),
    [
        (FLASH, (2, 7), True),
        (FLASH, (2, 13), True),
        (EFFICIENT, (2, 7), True),
        (EFFICIENT, (2, 8), False),  # in chunks
    ],
)
def test_fused_attention_takes_as_many_samples_as_a_grid_has_rows(
    operator: str, release: tuple[int, int], refuses: bool
) -> None:
    assert operator in OPERATORS
    rest = (3, 49, 32)
    assert why_not_taken(operator, (MOST_SAMPLES, *rest), Conditions(), release) is None
    said = why_not_taken(operator, (MOST_SAMPLES + 1, *rest), Conditions(), release)
    assert (said is not None) is refuses
    # The release that runs counts, where it is another than that of the trace.
    other = Conditions(torch_release=release)
    assert (why_not_taken(operator, (MOST_SAMPLES + 1, *rest), other, (2, 13)) is not None) is refuses


@pytest.mark.parametrize(
    ("operator", "release", "refuses"),
    [
        (AVERAGE_POOL, (2, 9), True),
        (AVERAGE_POOL, (2, 15), True),
        (MAX_POOL, (2, 9), True),
        (MAX_POOL, (2, 10), False),
    ],
)
def test_pooling_counts_what_it_returns(operator: str, release: tuple[int, int], refuses: bool) -> None:
    """The stem of resnet50x64_clip at 448 pixels, which ran with 1,024 samples and not with 1,536."""
    assert operator in OPERATORS
    ran, failed = ((size, 128, 112, 112) for size in (1024, 1536))
    assert why_not_taken(operator, ran, Conditions(), release) is None
    said = why_not_taken(operator, failed, Conditions(), release)
    assert (said is not None) is refuses
    if said is not None:
        assert f"{1536 * 128 * 112 * 112:,} elements" in said
    assert why_not_taken(operator, (1, 2**31 - 1, 1, 1), Conditions(), release) is None
    assert (why_not_taken(operator, (2**21, 1024, 1, 1), Conditions(), release) is not None) is refuses


@pytest.mark.parametrize(
    ("operator", "release", "refuses"),
    [
        ("aten.reflection_pad2d", (2, 15), True),
        ("aten.reflection_pad2d_backward", (2, 15), True),
        ("aten.replication_pad2d", (2, 15), True),
        ("aten.replication_pad2d_backward", (2, 15), True),
        ("aten.upsample_bilinear2d", (2, 13), True),
        ("aten.upsample_bilinear2d", (2, 14), False),
    ],
)
def test_what_indexes_in_32_bits_takes_one_element_less(
    operator: str, release: tuple[int, int], refuses: bool
) -> None:
    assert why_not_taken(operator, (2**31 - 2,), Conditions(), release) is None
    said = why_not_taken(operator, (2**31 - 1,), Conditions(), release)
    assert (said is not None) is refuses
    assert said is None or " 2,147,483,647 elements" in said


def test_whatever_is_counted_has_a_last_size() -> None:
    for func in COUNTED:
        operator = str(func).removesuffix(".default")
        assert why_not_taken(operator, (2**31,), Conditions(), (2, 13)) is not None


@pytest.mark.parametrize(
    ("workload", "memory_format", "module", "num_elements"),
    [
        ("padded", "contiguous", "2", 16 * 14 * 14),
        ("enlarged", "channels_last", "1", 16 * 24 * 24),
    ],
)
def test_the_largest_tensor_of_those_that_are_counted_sets_the_last_batch(
    workload: str, memory_format: str, module: str, num_elements: int, trace_of: Callable[..., Trace]
) -> None:
    settings = {"mode": "infer", "memory_format": memory_format}
    curve = PeakCurve.through([trace_of(f"small:{workload}", size, **settings) for size in (4, 6, 10)])
    most = MOST_ELEMENTS // num_elements
    there = Conditions(torch_release=(2, 13))
    assert curve.on_card(most, there).refusal() is None
    refusal = curve.on_card(most + 1, there).refusal()
    assert refusal is not None
    assert refusal.module == module


@pytest.mark.parametrize(
    ("channels", "memory_format", "size", "counted"),
    [
        (16, torch.channels_last, 24, (4, 16, 24, 24)),
        (16, torch.channels_last, 6, (4, 16, 12, 12)),  # the input is the larger one
        (16, torch.channels_last, 12, ()),  # a copy
        (15, torch.channels_last, 24, ()),  # not the kernel for channels last
        (16, torch.contiguous_format, 24, ()),
    ],
)
def test_interpolation_counts_the_larger_tensor_in_channels_last(
    channels: int, memory_format: torch.memory_format, size: int, counted: tuple[int, ...]
) -> None:
    func = torch.ops.aten.upsample_bilinear2d.default
    image = torch.empty(4, channels, 12, 12, device="meta").to(memory_format=memory_format)
    assert counted_shape(func, (image,), func(image, [size, size], align_corners=False)) == counted


def test_patches_of_a_transformer_are_in_channels_last_too() -> None:
    func = torch.ops.aten.upsample_bilinear2d.default
    tokens = torch.empty(4, 1 + 144, 16, device="meta")
    image = tokens[:, 1:].transpose(1, 2).unflatten(2, (12, 12))
    assert counted_shape(func, (image,), func(image, [24, 24], align_corners=False)) == (4, 16, 24, 24)


def test_backward_counts_the_gradient_of_what_was_padded(trace_of: Callable[..., Trace]) -> None:
    trace = trace_of("small:padded")
    counted = {a.operator: a.counted_shape for a in trace.allocations if a.counted_shape}
    assert counted == {
        "aten.reflection_pad2d": (4, 16, 12, 12),
        "aten.replication_pad2d": (4, 16, 14, 14),
        "aten.replication_pad2d_backward": (4, 16, 16, 16),
        "aten.reflection_pad2d_backward": (4, 16, 14, 14),
    }


def returning(operator: str, module: str, batch_size: int, shape: tuple[int, ...]) -> Trace:
    """A step of one operator, in half precision."""
    output = Allocation(
        num_bytes=2 * math.prod(shape),
        shape=shape,
        dtype="float16",
        category=Category.ACTIVATION,
        operator=operator,
        module=module,
    )
    return Trace(
        workload="one operator",
        batch_size=batch_size,
        mode="infer",
        optimizer="",
        knobs=Knobs(),
        allocations=(output,),
        events=(0, ~0),
    )


def windows(batch_size: int) -> Trace:
    """Attention within 64 windows of each image, as DaViT has it at 224 pixels."""
    return returning(FLASH, "stages.0.blocks.0.0.attn", batch_size, (64 * batch_size, 3, 49, 32))


def pooled(batch_size: int) -> Trace:
    """The stem of resnet50x64_clip at 448 pixels."""
    return returning(AVERAGE_POOL, "stem.pool", batch_size, (batch_size, 128, 112, 112))


def test_what_is_pooled_is_counted_at_the_batch_that_is_asked_for() -> None:
    curve = PeakCurve.through([pooled(batch_size) for batch_size in (4, 6, 10)])
    assert curve.on_card(1337, Conditions()).refusal() is None
    refusal = curve.on_card(1338, Conditions()).refusal()
    assert refusal is not None
    assert refusal.module == "stem.pool"


def test_windows_are_samples_too_and_no_memory_helps() -> None:
    curve = PeakCurve.through([windows(batch_size) for batch_size in (4, 6, 10)])
    assert curve.on_card(1023, Conditions()).refusal() is None
    assert curve.on_card(1023, Conditions()).verdict(10**12) is Verdict.FITS
    refusal = curve.on_card(1024, Conditions()).refusal()
    assert refusal is not None
    assert refusal.module == "stages.0.blocks.0.0.attn"
    assert "65,536 sequences or windows" in refusal.reason
    assert curve.on_card(1024, Conditions()).verdict(10**12) is Verdict.OOM
    assert not curve.on_card(1024, Conditions()).runs_within(10**12)


@pytest.mark.parametrize(
    ("operator", "architecture", "said"),
    [
        ("flash_attn._flash_attn_forward", "sm_75", "compute capability 8.0 and newer, not 7.5"),
        ("flash_attn._flash_attn_varlen_forward", "sm_100", None),
        ("flash_attn_3._flash_attn_forward", "sm_89", None),
        ("flash_attn_3._flash_attn_forward", "sm_100", "compute capability 8.0 to 9.0, not 10.0"),
    ],
)
def test_flash_attention_is_for_some_cards(operator: str, architecture: str, said: str | None) -> None:
    why = why_not_taken(operator, (4, 8, 2, 64), Conditions(architecture=architecture), (2, 13))
    assert (why is None) if said is None else said in str(why)
