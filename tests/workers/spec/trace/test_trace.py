"""The trace artifact: its encoding is canonical, complete and refused where it is not understood."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import autofit_workers
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import (
    TRACE_SCHEMA,
    Allocation,
    Call,
    Category,
    HostWait,
    ListedLayer,
    Mark,
    Scratch,
    Trace,
    TracedModel,
)
from autofit_workers.spec.work import Convolution, ConvPass

CONVOLUTION = Convolution(
    conv_pass=ConvPass.WGRAD,
    input_shape=(4, 3, 8, 9),
    weight_shape=(5, 3, 2, 2),
    output_shape=(4, 5, 7, 8),
    stride=(1, 1),
    padding=(0, 0),
    dilation=(1, 1),
    groups=1,
    dtype="float32",
    element_bytes=4,
    channels_last=True,
)
TRACE = Trace(
    workload="perceptron",
    batch_size=4,
    mode="train",
    optimizer="adam",
    knobs=Knobs(conv_algo="native", precision="amp-bf16", optimizer="adam"),
    allocations=(
        Allocation(
            num_bytes=512,
            category=Category.ACTIVATION,
            operator="aten.addmm",
            module="layers.0",
            source="/home/user/näher.py:12:forward",
            dtype="float32",
            shape=(4, 32),
            stack=("/home/user/train.py:3:<module>", "/home/user/näher.py:12:forward"),
            name="layers.0.weight",
        ),
        Allocation(num_bytes=0, category=Category.WORKSPACE, operator="aten.addmm", convolution=CONVOLUTION),
        Allocation(num_bytes=4, category=Category.OTHER),
        Allocation(
            num_bytes=0,
            category=Category.WORKSPACE,
            operator="aten.addmm",
            correction="layout_copies",
            scratch=Scratch(formula="elements", dimensions=(4, 32), element_bytes=2),
        ),
        Allocation(num_bytes=7, category=Category.WORKSPACE, correction="cublas"),
        Allocation(num_bytes=4, category=Category.OTHER, span_bytes=(3, 8)),
        Allocation(num_bytes=4, category=Category.ACTIVATION, counted_shape=(4, 3, 8, 9)),
        Allocation(num_bytes=8, category=Category.OTHER, stream=2, stream_uses=(0, 1)),
    ),
    events=(0, 1, ~1, 2, 3, 4, ~3, ~0),
    host_waits=(
        HostWait(position=5, stream=2, up_to=3),
        HostWait(position=6, stream=None, up_to=6, releases=True),
    ),
    marks=(Mark(position=0, name="model"), Mark(position=2, name="step 1 input")),
    versions={"torch": "2.13.0"},
    layers=(
        ListedLayer(
            name="layers.0",
            module_type="Linear",
            input_shapes=((4, 32),),
            output_shapes=((4, 32),),
            inputs=(1,),
            outputs=(2,),
            num_parameters=1056,
            num_weights=1056,
            is_container=False,
            is_sequence=False,
        ),
    ),
    calls=(
        Call(
            position=3,
            operator="aten.mul.Tensor",
            module="",
            inputs=(0, 2),
            outputs=(4,),
            is_elementwise=True,
            name="scaled",
        ),
    ),
)

MODEL = TracedModel(
    model_class="Perceptron",
    num_parameters=1_540_000_000,
    named="PerceptronModel",
    inputs={"features": (80, 3000), "labels": ()},
)


def document() -> dict[str, object]:
    data: dict[str, object] = json.loads(TRACE.to_json())
    return data


def test_a_trace_is_the_same_after_a_journey_as_text():
    assert Trace.from_json(TRACE.to_json()) == TRACE


def test_the_encoding_is_the_same_every_time_and_so_is_the_digest():
    again = Trace.from_json(TRACE.to_json())
    assert again.to_json() == TRACE.to_json()
    assert again.digest == TRACE.digest
    assert len(TRACE.digest) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 5},
        {"events": (0, 1, ~1, 2, ~2)},
        {"knobs": Knobs()},
        {"versions": {"torch": "2.14.0"}},
        {"marks": ()},
        {"calls": ()},
        {"layers": ()},
        {"model": MODEL},
        {"host_waits": ()},
        {
            "allocations": (
                dataclasses.replace(TRACE.allocations[0], module="layers.1"),
                *TRACE.allocations[1:],
            )
        },
    ],
)
def test_whatever_differs_gives_another_digest(change):
    assert dataclasses.replace(TRACE, **change).digest != TRACE.digest


def test_repeated_names_are_written_once():
    text = dataclasses.replace(TRACE, allocations=TRACE.allocations * 100).to_json()
    assert text.count("aten.addmm") == 1


@pytest.mark.parametrize("schema", ["autofit.trace/99", "autofit.trial-spec/1", None])
def test_another_schema_is_refused_by_name(schema):
    with pytest.raises(ValueError, match=rf"expected a trace of schema {TRACE_SCHEMA}, got {schema!r}"):
        Trace.from_json(json.dumps({**document(), "schema": schema}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"trace"'])
def test_what_is_no_document_is_refused(text):
    with pytest.raises(ValueError, match=r"Expecting|expected a trace"):
        Trace.from_json(text)


@pytest.mark.parametrize(
    "damage",
    [
        {"strings": []},
        {"allocations": [[1, "activation"]]},
        {"allocations": [[1, "furniture", 0, 0, 0, 0, [], None]]},
        {"allocations": None},
        {"knobs": {"conv_algo": "abacus", "precision": "fp32", "optimizer": None}},
        {"knobs": {"colour": "red"}},
        {"marks": [[1]]},
        {"events": 7},
        {"streams": [[0, -1, []]]},
        {"streams": [[0, 1, [True]]]},
        {"streams": [[99, 1, []]]},
        {"host_waits": [[1, 0]]},
        {"host_waits": [[1, 0, 2]]},
        {"host_waits": [[1, "0", 1]]},
        {"host_waits": [[1, 0, 1, False]]},
    ],
)
def test_a_malformed_trace_is_refused(damage):
    with pytest.raises(ValueError, match="the trace is malformed"):
        Trace.from_json(json.dumps({**document(), **damage}))


@pytest.mark.parametrize("field", ["workload", "batch_size", "events", "marks", "versions", "strings"])
def test_a_trace_that_lacks_a_part_is_refused(field):
    incomplete = {key: value for key, value in document().items() if key != field}
    with pytest.raises(ValueError, match=f"malformed.*{field}"):
        Trace.from_json(json.dumps(incomplete))


def test_a_trace_on_the_default_stream_alone_says_nothing_of_streams():
    alone = dataclasses.replace(TRACE, allocations=TRACE.allocations[:-1], host_waits=())
    written = json.loads(alone.to_json())
    assert "streams" not in written
    assert "host_waits" not in written


def test_a_trace_that_is_cut_keeps_the_waits_up_to_there():
    marked = dataclasses.replace(TRACE, marks=(Mark(position=5, name="step 1 output"),))
    assert marked.until("step 1 output").host_waits == TRACE.host_waits[:1]


def test_a_step_keeps_the_identity_that_it_had_when_the_package_had_another_name() -> None:
    package = Path(autofit_workers.__path__[0])
    ours, theirs = package / "workload/models/vgg.py", package.parent / "workload/models/vgg.py"
    assert package.parent.name == "workers"  # a checkout, in which 0.2 had its files one folder up
    first, *others = TRACE.allocations
    now, then = (
        dataclasses.replace(
            TRACE, allocations=(dataclasses.replace(first, source=f"{file}:55:forward"), *others)
        )
        for file in (ours, theirs)
    )
    assert now.digest != then.digest
    assert now.identity == then.identity == then.digest


def test_what_a_model_is_called_is_told_and_does_not_change_the_identity_of_its_step() -> None:
    of_model = dataclasses.replace(TRACE, model=MODEL)
    assert Trace.from_json(of_model.to_json()) == of_model
    assert of_model.identity == TRACE.identity != of_model.digest
    assert MODEL.sentences == (
        "the model is Perceptron, 1.54 billion parameters (its configuration names PerceptronModel, which "
        "has no loss); a sample is features 80×3000, labels",
    )
    assert dataclasses.replace(MODEL, inputs={}).sentences == ()


def test_a_step_of_users_files_has_its_digest_for_its_identity() -> None:
    assert TRACE.identity == TRACE.digest
