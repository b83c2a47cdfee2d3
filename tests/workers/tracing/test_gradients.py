"""Gradients: which are summed in place, which are kept, and what the steps leave behind."""

from __future__ import annotations

import pytest


def additions(steps) -> list[int]:
    return [num_bytes for name, num_bytes in steps.outputs("backward") if name == "add.Tensor"]


def test_the_gradients_that_meet_at_a_residual_are_summed_in_place(steps_of):
    # The layer is used twice: its own gradients are views, which autograd never adds into.
    assert additions(steps_of("residual")) == [16 * 4, 16 * 16 * 4]


def test_two_gradients_that_one_operator_gives_to_one_input_are_summed_in_place(steps_of):
    steps = steps_of("squared")
    assert additions(steps) == []
    products = [output for output in steps.outputs("backward", module="") if output == ("mul.Tensor", 256)]
    assert len(products) == 3  # of the loss, and both of the square


def test_the_gradient_of_what_was_picked_is_scattered_in_place(steps_of):
    names = [name for name, _ in steps_of("picked").outputs("backward")]
    assert names.count("new_zeros") == 2
    assert not any(name.startswith("scatter") for name in names)


def test_a_sum_within_a_users_own_backward_is_no_sum_in_place(steps_of):
    assert additions(steps_of("own_function")) == [4 * 16 * 4]


def test_what_a_checkpoint_runs_again_allocates_as_it_did_the_first_time(steps_of):
    steps = steps_of("checkpointed")
    first = [output for output in steps.outputs("forward") if output[0] == "add.Tensor"]
    assert first == [("add.Tensor", 256)] * 3
    # Non-reentrant checkpointing stops before the last operator, whose output nobody needs.
    again = [a for a in steps.allocations("backward") if a.source.endswith(":inside")]
    assert [a.operator for a in again if a.operator == "aten.add.Tensor"] == ["aten.add.Tensor"] * 2


def test_a_step_of_several_backwards_adds_into_the_gradients_it_has(steps_of):
    steps = steps_of("accumulating")
    gradients_bytes = 4 * (16 * 48 + 48 + 48 * 2 + 2)
    assert steps.live_bytes("gradient") == gradients_bytes
    assert not any(name == "add.Tensor" and size >= 48 * 4 for name, size in steps.outputs("forward"))


def test_frozen_parameters_have_no_gradients_and_no_optimizer_state(steps_of):
    steps = steps_of("frozen")
    trained_bytes = 4 * (48 * 2 + 2)
    assert steps.live_bytes("gradient") == trained_bytes
    assert steps.live_bytes("optimizer_state") == 2 * trained_bytes
    assert steps.outputs("backward", module="0") == []


def test_gradients_are_dropped_at_the_start_of_the_next_step(steps_of):
    steps = steps_of("perceptron")
    first_events = steps.events("forward")[:4]
    freed = [steps.trace.allocations[~event] for event in first_events]
    assert [a.category for a in freed] == ["gradient"] * 4


@pytest.mark.parametrize("attribute", ["perceptron", "residual", "convolutional", "attention", "language"])
def test_the_breakdown_of_what_is_left_is_parameters_and_gradients(attribute, steps_of):
    steps = steps_of(attribute)
    assert steps.live_bytes() == steps.live_bytes("parameter", "gradient")
    buffers_bytes = {"convolutional": 8 * 4 * 2 + 8, "language": 5 * 16 * 4 + 70 * 4}.get(attribute, 0)
    assert steps.live_bytes("parameter") == steps.live_bytes("gradient") + buffers_bytes


def test_inference_keeps_nothing_for_a_backward_pass(steps_of):
    training, inference = steps_of("perceptron"), steps_of("perceptron", mode="infer")
    assert inference.trace.mode == "infer"
    assert inference.live_bytes() == inference.live_bytes("parameter")
    # The layers' outputs die as soon as the next one is there: never three at once.
    alive: set[int] = set()
    most = 0
    for event in inference.events("forward"):
        alive.symmetric_difference_update({max(event, ~event)})
        sizes = [inference.trace.allocations[i].num_bytes for i in alive]
        most = max(most, sum(size == 4 * 48 * 4 for size in sizes))
    assert most == 2
    assert training.live_bytes("activation", mark="step 2 backward") == 4 * 48 * 4 + 4 * 2 * 4 + 4


def test_backward_is_seen_where_the_engine_is_called_directly(trace_of):
    taken = [
        [(each.operator, each.num_bytes, each.correction) for each in trace_of(name).allocations]
        for name in ("small:of_tensor", "small:of_engine")
    ]
    assert taken[0] == taken[1]
    assert sum(correction == "cublas" for *_, correction in taken[1]) >= 2  # of forward and of backward
