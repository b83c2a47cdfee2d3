"""Which convolutions PyTorch refuses for the number of their elements."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from workers.predict.conditions import Conditions
from workers.predict.indexing import too_many_elements
from workers.predict.workspace import MOST_ELEMENTS, goes_to_cudnn
from workers.trace import Convolution, ConvPass

# blocks.1.0.conv_dw of efficientnet_b3 at 320 pixels, one sample.
LAYER = Convolution(
    conv_pass=ConvPass.FPROP,
    input_shape=(1, 144, 160, 160),
    weight_shape=(144, 1, 3, 3),
    output_shape=(1, 144, 80, 80),
    stride=(2, 2),
    padding=(1, 1),
    dilation=(1, 1),
    groups=144,
    dtype="float16",
    element_bytes=2,
)
LAST = MOST_ELEMENTS // (144 * 160 * 160)


BEFORE, SINCE = (2, 7), (2, 8)


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


def test_without_cudnn_the_layout_does_not_help() -> None:
    call = dataclasses.replace(LAYER, channels_last=True).of_samples(LAST + 1)
    assert refused(call, conv_algo="native")


def test_a_batch_in_pieces_is_indexed_piece_by_piece() -> None:
    assert not refused(LAYER.of_samples(4 * LAST), conv_algo="chunked:8")
