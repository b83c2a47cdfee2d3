"""A trace of any batch size, from traces at two: equal to the traced one in everything that it says."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from autofit_workers.replay.curve.lines.polynomials import NotPolynomialError
from autofit_workers.replay.curve.lines.trace_lines import TraceLines
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Assumption, Category, Scratch, Trace
from autofit_workers.spec.work import Convolution, ConvPass, Group, Layout, Operand, Work, WorkCall


def convolution(batch_size: int) -> Convolution:
    return Convolution(
        conv_pass=ConvPass.FPROP,
        input_shape=(batch_size, 3, 8, 8),
        weight_shape=(10, 3, 1, 1),
        output_shape=(batch_size, 10, 8, 8),
        stride=(1, 1),
        padding=(0, 0),
        dilation=(1, 1),
        groups=1,
        dtype="float32",
        element_bytes=4,
    )


def operand(*shape: int) -> Operand:
    return Operand(shape, "float32", Layout.CONTIGUOUS, ())


def trace_at(batch_size: int) -> Trace:
    """Trace of a step with a B×B tensor, and with shapes that are equal at a batch size of 10 alone."""
    shapes = [(batch_size, 10), (10, 10), (batch_size, batch_size), (batch_size, 7)]
    allocations = [
        Allocation(num_bytes=4 * math.prod(shape), category=Category.ACTIVATION, dtype="float32", shape=shape)
        for shape in shapes
    ]
    allocations += [
        Allocation(num_bytes=0, category=Category.WORKSPACE, convolution=convolution(size))
        for size in (batch_size, 10)
    ]
    scratch = Scratch(formula="elements", dimensions=(batch_size, 32), element_bytes=2)
    allocations.append(
        Allocation(num_bytes=0, category=Category.WORKSPACE, correction="layout_copies", scratch=scratch)
    )
    works = [
        Work(
            operator="aten.mm",
            inputs=(operand(size, 10), operand(10, 10)),
            outputs=(operand(size, 10),),
            group=group,
        )
        for size, group in ((batch_size, None), (10, Group(2, 1)), (10, None))
    ]
    works.append(
        Work(
            operator="aten.convolution",
            inputs=(operand(batch_size, 3, 8, 8),),
            outputs=(operand(batch_size, 10, 8, 8),),
            convolutions=(convolution(batch_size), convolution(10)),
        )
    )
    return Trace(
        workload="step",
        batch_size=batch_size,
        mode="train",
        optimizer="sgd",
        knobs=Knobs(),
        allocations=tuple(allocations),
        events=tuple(range(len(allocations))),
        work=tuple(WorkCall(work, "layer", number, 0) for number, work in enumerate(works)),
        assumptions=(
            Assumption(site="a.py:1:f", what="a mask", size=3 * batch_size, largest=batch_size * 6),
        ),
        notes=("a note",),
    )


def document(trace: Trace) -> Any:
    return json.loads(trace.to_json())


def through(*traces: Trace) -> TraceLines:
    return TraceLines.through([document(each) for each in traces])


@pytest.mark.parametrize("sizes", [(4, 6, 24), (4, 10, 6, 24), (10, 24, 4, 6)])
@pytest.mark.parametrize("batch_size", [5, 9, 10, 11, 23])
def test_the_trace_of_another_size_is_the_traced_one(sizes: tuple[int, ...], batch_size: int) -> None:
    text = through(*map(trace_at, sizes)).text_at(batch_size)
    expected = trace_at(batch_size)
    assert Trace.from_json(text) == expected
    assert Trace.from_json(text).digest == expected.digest


def test_lines_may_be_asked_for_several_sizes() -> None:
    lines = through(trace_at(4), trace_at(10))
    texts = {size: lines.text_at(size) for size in (7, 12)}
    assert lines.text_at(7) == texts[7] != texts[12]


def changed(trace: Trace, name: str) -> Trace:
    """Trace that differs from the other in one thing, as a step may that branches on its batch size."""
    first, *rest = trace.allocations
    changes: dict[str, Any] = {
        "a note": {"notes": (f"of {trace.batch_size} samples",)},
        "an operator": {"allocations": (dataclasses.replace(first, operator="aten.cat"), *rest)},
        "events": {"events": (*trace.events, ~0)},
        "order": {"events": trace.events[::-1]},
        "bytes": {"allocations": (dataclasses.replace(first, num_bytes=first.num_bytes + 1), *rest)},
        "an assumption": {"assumptions": (dataclasses.replace(trace.assumptions[0], size=1),)},
        "a missing list": {"assumptions": ()},
        "work": {"work": trace.work[:-1]},
        "a position": {"work": (*trace.work[:-1], dataclasses.replace(trace.work[-1], position=7))},
    }
    return dataclasses.replace(trace, **changes[name])


CHANGES = (
    "a note",
    "an operator",
    "events",
    "order",
    "bytes",
    "an assumption",
    "a missing list",
    "work",
    "a position",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_trace_that_differs_in_anything_agrees_with_no_lines(change: str) -> None:
    """The curve of the peak does not see a note, nor what an assumption is."""
    with pytest.raises(NotPolynomialError):
        through(trace_at(4), trace_at(10), trace_at(6), changed(trace_at(24), change))


@pytest.mark.parametrize("change", CHANGES)
def test_no_lines_go_through_traces_that_differ(change: str) -> None:
    with pytest.raises(NotPolynomialError):
        through(trace_at(4), changed(trace_at(10), change), trace_at(6))


def test_no_lines_go_through_halves_that_are_rounded() -> None:
    def halved(batch_size: int) -> Trace:
        assumed = Assumption(site="a.py:1:f", what="a mask", size=batch_size // 2, largest=None)
        return dataclasses.replace(trace_at(batch_size), assumptions=(assumed,))

    with pytest.raises(NotPolynomialError):
        through(halved(4), halved(10), halved(6))


def test_no_lines_go_through_traces_of_one_size() -> None:
    """As of a workload that makes one batch, whatever size it is asked for."""
    with pytest.raises(NotPolynomialError, match="both traces are at batch size 4"):
        through(trace_at(4), trace_at(4))
