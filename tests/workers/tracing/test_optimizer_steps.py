"""Optimizers take the path that they take on a GPU by default: all parameters in one call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.workload.optimizers import each_of, make_named
from autofit_workers.workload.step import train_step
from autofit_workers.workload.workload import Workload

SMALL_WORKLOADS = Path(__file__).parent / "small_workloads.py"
PARAMETERS_BYTES = [16 * 48 * 4, 48 * 4, 48 * 2 * 4, 2 * 4]


def test_adam_has_the_temporaries_of_all_parameters_at_once(steps_of):
    steps = steps_of("perceptron", optimizer="adam")
    assert steps.outputs("optimizer") == [("_foreach_sqrt", size) for size in PARAMETERS_BYTES]
    made = [
        event
        for event in steps.events("optimizer")
        if steps.trace.allocations[max(event, ~event)].operator == "aten._foreach_sqrt"
    ]
    assert [event >= 0 for event in made] == [True] * 4 + [False] * 4  # freed when the last one is made


def test_adafactor_updates_one_parameter_after_the_other_unless_told_otherwise(steps_of):
    default, loop, foreach = (
        steps_of("perceptron", optimizer="adafactor", optimizer_impl=each)
        for each in ("default", "loop", "foreach")
    )
    assert default.trace.events == loop.trace.events
    of_all, of_one = (
        {operator for operator, _ in each.outputs("optimizer") if operator.startswith("_foreach")}
        for each in (foreach, loop)
    )
    assert of_all
    assert not of_one
    assert not any("branches" in note for note in default.trace.notes)


def test_clipping_takes_the_norms_of_all_gradients_at_once(steps_of):
    made = steps_of("perceptron", clip_grad_norm=1.0).allocations("optimizer")
    norms = [each for each in made if each.operator == "aten._foreach_norm.Scalar"]
    (pieces,) = (each.scratch for each in norms if each.scratch is not None)
    assert pieces.dimensions == (4, 1)  # of 65,536 elements, of each of four parameters
    assert [each.num_bytes for each in norms if each.scratch is None] == [4] * 4


def test_gradients_are_unscaled_before_they_are_clipped(steps_of):
    steps = steps_of("perceptron", clip_grad_norm=1.0, precision="amp-fp16")
    operators = [operator for operator, _ in steps.outputs("optimizer")]
    assert operators.index("reciprocal") < operators.index("_foreach_norm.Scalar")  # of the scale


def test_in_backward_gradients_live_one_by_one_and_are_none_of_what_outlives_a_step(steps_of):
    steps = steps_of("perceptron", optimizer="adam", optimizer_in_backward=True)
    assert steps.live_bytes() == 3 * sum(PARAMETERS_BYTES)
    assert steps.live_bytes("gradient") == 0
    made = {a.num_bytes for a in steps.allocations("backward") if a.category == "gradient"}
    assert made == set(PARAMETERS_BYTES)
    assert steps.live_bytes("parameter", "gradient", mark="step 2 optimizer") == sum(PARAMETERS_BYTES)
    assert not steps.outputs("optimizer")


def test_muon_makes_a_gradient_orthogonal_in_half_precision(steps_of):
    halves = [
        size
        for operator, size in steps_of("perceptron", optimizer="muon").outputs("optimizer")
        if operator == "_to_copy"
    ]
    assert halves == [16 * 48 * 2]


def test_the_default_is_the_foreach_implementation(steps_of):
    default, foreach = steps_of("perceptron", optimizer="adam"), steps_of("foreach_adam")
    assert default.trace.allocations == foreach.trace.allocations
    assert default.trace.events == foreach.trace.events


@pytest.mark.parametrize("optimizer", [name for name, named in NAMED.items() if named.library == "torch"])
def test_an_optimizer_keeps_the_state_that_it_keeps_on_the_cpu(optimizer, steps_of):
    workload = Workload.load(f"{SMALL_WORKLOADS}:perceptron")
    model = workload.build_model()
    real = make_named(optimizer, model)
    train_step(workload, model, real, workload.make_batch(4, torch.device("cpu")))
    of_each = [state for each in each_of(real) for state in each.state.values()]
    states = [value for state in of_each for value in state.values() if torch.is_tensor(value)]
    # Step counts are scalars in the host's memory.
    expected_bytes = sum(value.nbytes for value in states if value.dim() > 0)
    assert steps_of("perceptron", optimizer=optimizer).live_bytes("optimizer_state") == expected_bytes


@pytest.mark.parametrize(
    ("optimizer", "multiple"),
    [("sgd", 2), ("sgd-momentum", 3), ("adam", 4), ("adamw", 4), ("rmsprop", 3), ("adagrad", 3)],
)
def test_parameters_gradients_and_states_are_all_that_outlives_a_step(optimizer, multiple, steps_of):
    steps = steps_of("perceptron", optimizer=optimizer)
    assert steps.live_bytes() == multiple * sum(PARAMETERS_BYTES)
    assert steps.live_bytes("parameter", "gradient", "optimizer_state") == steps.live_bytes()


def test_states_are_made_in_the_first_step_alone(steps_of):
    steps = steps_of("perceptron", optimizer="adam")
    made = [
        sum(a.category == "optimizer_state" for a in steps.allocations("optimizer", step=n))
        for n in (1, 2, 3)
    ]
    assert made == [8, 0, 0]
