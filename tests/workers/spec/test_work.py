"""What operators have to do, as a trace keeps it."""

from __future__ import annotations

import json

import pytest

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Mark, Trace, last_step
from autofit_workers.spec.work import Convolution, ConvPass, Layout, Operand, Work, WorkCall

IMAGES = Operand((4, 3, 8, 8), "float16", Layout.CHANNELS_LAST)
CONVOLUTION = Convolution(
    conv_pass=ConvPass.FPROP,
    input_shape=(4, 3, 8, 8),
    weight_shape=(5, 3, 3, 3),
    output_shape=(4, 5, 8, 8),
    stride=(1, 1),
    padding=(1, 1),
    dilation=(1, 1),
    groups=1,
    dtype="float16",
    element_bytes=2,
)
CALLS = (
    WorkCall(Work("aten.convolution", (IMAGES,), (IMAGES,), (CONVOLUTION,)), "layer", 3, 2),
    WorkCall(Work("aten.add.Tensor", (IMAGES, Operand((4, 3, 8, 8), "float16", repeated=(0,))), ()), "", 4),
    WorkCall(Work("aten.convolution", (IMAGES,), (IMAGES,), (CONVOLUTION,)), "layer", 5),
)


def trace(*calls: WorkCall) -> Trace:
    return Trace(
        workload="any",
        batch_size=4,
        mode="train",
        optimizer="sgd",
        knobs=Knobs(),
        allocations=(),
        events=(),
        work=calls,
    )


def marks(*names: str) -> list[Mark]:
    return [Mark(position=10 * place, name=name) for place, name in enumerate(names)]


def test_work_is_read_back_as_it_was_written() -> None:
    assert Trace.from_json(trace(*CALLS).to_json()).work == CALLS


def test_the_same_work_is_written_once() -> None:
    document = trace(*CALLS, *CALLS).to_dict()
    assert len(document["work"]["works"]) == 2
    assert len(document["work"]["calls"]) == 6


@pytest.mark.parametrize("change", [lambda row: row.__setitem__(0, 9), lambda row: row.__setitem__(2, -1)])
def test_work_that_is_malformed_is_refused(change) -> None:
    document = json.loads(trace(*CALLS).to_json())
    change(document["work"]["calls"][0])
    with pytest.raises(ValueError, match="malformed"):
        Trace.from_dict(document)


def test_an_element_that_stands_for_many_is_read_once() -> None:
    assert Operand((8, 16), "float32", repeated=(0,)).num_bytes == 64
    assert Operand((8, 16), "float32").num_bytes == 512


def test_the_last_step_is_the_last_that_an_optimizer_ended() -> None:
    named = marks(
        "model", "step 1 input", "step 1 forward", "step 1 optimizer", "step 2 input", "step 2 forward"
    )
    assert last_step(named, 100) == (10, 40)


def test_a_step_without_an_optimizer_ends_with_the_trace() -> None:
    assert last_step(marks("model", "step 1 input", "step 1 forward"), 25) == (10, 26)


def test_what_follows_a_step_is_no_part_of_it() -> None:
    named = marks("step 1 input", "step 1 optimizer", "step 2 input", "step 2 optimizer", "step 3 checkpoint")
    assert last_step(named, 100) == (20, 40)


def test_without_a_step_there_is_none() -> None:
    assert last_step(marks("model"), 7) == (7, 7)
