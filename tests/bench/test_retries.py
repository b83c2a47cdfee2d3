"""What a smaller batch meets after a larger one failed, replayed."""

from __future__ import annotations

import pytest

from tests.bench.retries import RetriedCurve, after_failure
from tests.bench.tables.timm_brackets import INFER_FILE, read_infer
from workers.predict.conditions import Conditions
from workers.predict.curve import PeakCurve
from workers.protocol import Knobs
from workers.trace import Allocation, Category, Mark, Trace

MIB = 1 << 20
WEIGHTS_BYTES, SAMPLE_BYTES, MAP_BYTES = 30 * MIB, MIB, 2 * MIB


def trace_at(batch_size: int) -> Trace:
    """Weights, a batch of 1 MiB a sample that stays, and a feature map of 2 MiB a sample."""
    allocations = [
        Allocation(num_bytes=size, dtype="uint8", shape=shape, operator="aten.empty", category=category)
        for size, shape, category in (
            (WEIGHTS_BYTES, (WEIGHTS_BYTES,), Category.PARAMETER),
            (batch_size * SAMPLE_BYTES, (batch_size, SAMPLE_BYTES), Category.INPUT),
            (batch_size * MAP_BYTES, (batch_size, MAP_BYTES), Category.ACTIVATION),
        )
    ]
    return Trace(
        workload="made by hand",
        batch_size=batch_size,
        mode="infer",
        optimizer="none",
        knobs=Knobs(),
        allocations=tuple(allocations),
        events=(0, 1, 2, ~2),
        marks=(Mark(position=0, name="model"), Mark(position=1, name="step 1 input")),
    )


def reserved_mib(curve: PeakCurve | RetriedCurve, batch_size: int) -> int:
    return curve.at(batch_size).reserved_bytes(batch_size, Conditions()) // MIB


@pytest.fixture
def curve() -> RetriedCurve:
    traces = [trace_at(batch_size) for batch_size in (20, 24, 30)]
    tried_again = PeakCurve([after_failure(trace, 200) for trace in traces])
    return RetriedCurve(PeakCurve(traces), tried_again, first_batch_size=200)


def test_a_smaller_batch_keeps_the_segment_of_the_first(curve):
    # Weights of 30 MiB; the first batch's 200 MiB hold the new batch, and a map that fits beside it.
    assert reserved_mib(curve, 60) == 30 + 200
    assert reserved_mib(curve, 100) == 30 + 200 + 200  # its map of 200 MiB does not fit beside it


def test_what_is_tried_first_finds_the_card_as_it_is(curve):
    assert reserved_mib(curve, 200) == 30 + 200 + 400


def test_a_first_try_is_the_largest_size_that_failed_in_a_file_of_results(tmp_path):
    lines = [
        "mode,precision,layout,torch,gpu,model,img_size,fits_batch,did_not_fit_batch,param_count_M",
        "infer,amp,nchw,2.4,rtx3090,vit_base_patch16_224,224,256,384,86",
        "infer,amp,nchw,2.4,rtx3090,resnet50,224,768,1024,26",
        "infer,amp,nhwc,2.4,rtx3090,resnet50,224,384,512,26",
    ]
    (tmp_path / INFER_FILE).write_text("\n".join(lines))
    assert [row.first_batch_size for row in read_infer(tmp_path)] == [1024, 1024, 512]
