"""A trace with calls: every operator with what it reads and writes, and every allocation with its stack."""

from __future__ import annotations

import dataclasses

import pytest

from autofit_workers.spec.protocol import HOST_ARCHITECTURE, Probe, TrialSpec, WorkloadRef
from autofit_workers.spec.trace import Category, Trace
from autofit_workers.trials.run import run

_SOURCE = """
import torch
from torch import nn
from torch.nn import functional
from autofit_workers.workload import Workload


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 8, bias=False)

    def forward(self, batch):
        hidden = functional.relu(self.first(batch))
        for _ in range(2):
            hidden = hidden + 1.5
        hidden += 2.5
        return self.last(hidden)


def loss(model, batch):
    output = model(batch)
    error = (output - batch).square()
    return error.mean()


net = Workload(
    build_model=Net,
    make_batch=lambda batch_size, device: torch.ones(batch_size, 8, device=device),
    loss=loss,
    optimizer="adam",
)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("called") / "net.py"
    path.write_text(_SOURCE)
    return path


def traced(path, **options):
    outcome = run(
        TrialSpec(
            workload=WorkloadRef(kind="file", target=f"{path}:net"),
            batch_size=4,
            probe=Probe.PREDICT,
            **options,
        )
    )
    assert outcome.trace_json is not None, outcome.error
    return Trace.from_json(outcome.trace_json)


@pytest.fixture(scope="module")
def trace(path):
    return traced(path, with_calls=True)


def calls_in(trace, phase, step=2):
    marks = [*trace.marks, dataclasses.replace(trace.marks[-1], position=len(trace.events), name="end")]
    (number,) = (n for n, mark in enumerate(marks) if mark.name == f"step {step} {phase}")
    # A call at a mark's position is of the phase that begins there: it allocates after it.
    start, stop = marks[number].position, marks[number + 1].position
    return [call for call in trace.calls if start <= call.position < stop]


def line_of(text):
    (number,) = (n for n, line in enumerate(_SOURCE.splitlines(), 1) if text in line)
    return number


def test_calls_and_stacks_change_nothing_else_of_a_trace(path, trace):
    plain = traced(path)
    assert plain.calls == ()
    assert not any(each.stack or each.name for each in plain.allocations)
    assert (trace.events, trace.marks) == (plain.events, plain.marks)
    owned = {Category.PARAMETER, Category.OPTIMIZER_STATE, Category.GRADIENT, Category.INPUT}
    for one, other in zip(trace.allocations, plain.allocations, strict=True):
        module = other.module if one.category in owned else one.module
        assert dataclasses.replace(one, stack=(), name="", module=module) == other


def test_every_allocation_of_an_operators_result_is_the_result_of_one_call(trace):
    made = [event for event in trace.events if event >= 0]
    outputs = {number for call in trace.calls for number in call.outputs}
    without = [trace.allocations[number] for number in set(made) - outputs]
    assert all(each.correction for each in without)
    births = {event: position for position, event in enumerate(trace.events) if event >= 0}
    for call in trace.calls:
        assert all(births[number] < call.position or number in call.outputs for number in call.inputs)
        new = [number for number in call.outputs if number not in call.inputs]
        assert all(births[number] >= call.position for number in new)


def test_named_are_the_results_that_python_binds(trace):
    forward = [
        (call.operator.removeprefix("aten."), call.name)
        for call in calls_in(trace, "forward")
        if call.operator not in ("aten.t", "aten.detach")
    ]
    assert forward == [
        ("addmm", ""),
        ("relu", "hidden"),
        ("add.Tensor", "hidden"),
        ("add.Tensor", "hidden"),
        ("add_.Tensor", "hidden"),
        ("mm", "output"),
        ("sub.Tensor", ""),
        ("pow.Tensor_Scalar", "error"),
        ("mean", "loss"),
    ]
    assert not any(call.name for call in calls_in(trace, "backward"))


def test_element_wise_operators_are_told_from_the_others(trace):
    found = {call.operator: call.is_elementwise for call in calls_in(trace, "forward")}
    assert found["aten.relu"]
    assert found["aten.add_.Tensor"]
    assert not found["aten.mm"]
    assert not found["aten.mean"]


def test_a_result_in_place_lies_in_its_input(trace):
    (call,) = (call for call in calls_in(trace, "forward") if call.operator == "aten.add_.Tensor")
    assert call.outputs == call.inputs[:1]


def test_a_stack_leads_from_the_users_loss_to_the_line_that_asked(path, trace):
    (call,) = (call for call in calls_in(trace, "forward") if call.operator == "aten.relu")
    stack = trace.allocations[call.outputs[0]].stack
    users = [line for line in stack if line.startswith("/")]
    assert users == [
        f"{path}:{line_of('output = model(batch)')}:loss",
        f"{path}:{line_of('hidden = functional.relu')}:forward",
    ]
    assert users[-1] == trace.allocations[call.outputs[0]].source
    assert stack[-1].startswith("torch/nn/functional.py:")
    assert not any("workers/" in line for line in stack)


def test_backward_bears_the_stack_of_the_forward_call(trace):
    (relu,) = (call for call in calls_in(trace, "forward") if call.operator == "aten.relu")
    (backward,) = (call for call in calls_in(trace, "backward") if "threshold" in call.operator)
    stack = trace.allocations[relu.outputs[0]].stack
    assert trace.allocations[backward.outputs[0]].stack == stack


def test_what_model_and_optimizer_hold_bears_its_name_and_module(trace):
    alive = set()
    for event in trace.events:
        (alive.add if event >= 0 else alive.discard)(event if event >= 0 else ~event)
    named = {trace.allocations[number].name: trace.allocations[number].module for number in alive}
    owned = {
        f"{name}{suffix}": name.partition(".")[0]
        for name in ("first.weight", "first.bias", "last.weight")
        for suffix in ("", ".grad", ".exp_avg", ".exp_avg_sq")
    }
    assert owned.items() <= named.items()
    inputs = [each for each in trace.allocations if each.category is Category.INPUT]
    assert {each.name for each in inputs} == {"input:0"}


def test_a_step_on_the_cpu_has_calls_and_stacks_too(path):
    trace = traced(path, with_calls=True, architecture=HOST_ARCHITECTURE)
    names = [call.name for call in calls_in(trace, "forward") if call.operator == "aten.relu"]
    assert names == ["hidden"]
    assert any(line.startswith(f"{path}:") for each in trace.allocations for line in each.stack)
