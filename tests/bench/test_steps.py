"""The loops of the tables' authors, traced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autofit_workers.spec.trace import Category, Trace
from tests.bench.tables.setting import Setting
from tests.bench.tracer import Tracer

NETWORK = (
    "input_channels:3_num_classes:5_depth:2_arch:uniform_base_filters:4_batch:2_input_size:8_act:leaky_relu"
    "_dropout:0.25_dropout:False_batchnorm:False.out"
)
LAYERS = (("conv2d", 256, 112), ("conv2d", 256, 148), ("linear", 5, 25))


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    tracer = Tracer()
    yield tracer
    tracer.close()


def traced(tracer: Tracer, step: str) -> Trace:
    """A small network with momentum, at batch 5."""
    setting = Setting(
        source="synthetic", model=NETWORK, optimizer="timm-sgd", step=step, image_size=8, layers=LAYERS
    )
    return Trace.from_json(tracer.trace(setting, 5)[0])


def test_timms_loop_fetches_a_batch_while_the_one_before_is_used(tracer: Tracer) -> None:
    trace = traced(tracer, "timm-training")
    (start,) = (mark.position for mark in trace.marks if mark.name == "step 2 input")
    freed = {~event for event in trace.events[:start] if event < 0}
    live = [trace.allocations[e] for e in trace.events[:start] if e >= 0 and e not in freed]
    assert [a.dtype for a in live if a.shape == (5, 3, 8, 8)] == ["float32", "float32"]
    momentum = [a.num_bytes for a in live if a.category is Category.OPTIMIZER_STATE]
    parameters = [a.num_bytes for a in live if a.category is Category.PARAMETER]
    assert sum(momentum) == sum(parameters)
    assert not [a for a in live if a.category is Category.GRADIENT]


def test_gpumemnets_loop_begins_with_a_pass_over_two_images(tracer: Tracer) -> None:
    trace = traced(tracer, "gpumemnet")
    first, *others = [
        a.convolution.input_shape[0]
        for a in trace.allocations
        if a.convolution is not None and a.operator == "aten.convolution"
    ]
    assert first == 2
    assert others.count(2) == 1  # of the second layer, and never again
    assert set(others) == {2, 5}
    momentum = [a.num_bytes for a in trace.allocations if a.category is Category.OPTIMIZER_STATE]
    parameters = [a.num_bytes for a in trace.allocations if a.category is Category.PARAMETER]
    assert sum(momentum) == sum(parameters)
