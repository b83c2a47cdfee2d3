"""Recurrent networks run whole in cuDNN. 5 steps of 4 sequences, 8 features → 6 units; sizes in bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from autofit_workers.tracing.fake.recurrent_sizes import RecurrentNetwork, reserve, workspace
from autofit_workers.workload.workload import Workload

SMALL_WORKLOADS = Path(__file__).parents[1] / "small_workloads.py"
LSTM = RecurrentNetwork(num_gates=4, input_size=8, hidden_size=6)
WEIGHTS_BYTES = 4 * (4 * 6 * (8 + 6) + 2 * 4 * 6)
INPUT_BYTES, OUTPUT_BYTES, STATE_BYTES = 5 * 4 * 8 * 4, 5 * 4 * 6 * 4, 4 * 6 * 4
WORKSPACE_BYTES = workspace(LSTM, 5 * 4, 4, 4).likely_bytes
RESERVE_BYTES = reserve(LSTM, 5 * 4, 4, dropout=False).likely_bytes


def taken(steps, phase):
    """Operator, bytes and category of what cuDNN asks for in a phase."""
    made = steps.allocations(phase)
    return [(a.operator, a.num_bytes, a.category) for a in made if "cudnn" in a.operator]


def test_the_outputs_come_before_the_workspace_and_that_before_the_reserve(steps_of):
    assert [size for _, size in steps_of("lstm").outputs("forward")] == [
        *[STATE_BYTES] * 2,  # the first hidden state and cell, zeros
        OUTPUT_BYTES,
        *[STATE_BYTES] * 2,
        WORKSPACE_BYTES,
        RESERVE_BYTES,
        4,  # the loss
    ]


def test_the_workspace_is_freed_and_the_reserve_kept_until_backward(steps_of):
    steps = steps_of("lstm")
    assert taken(steps, "forward") == [
        ("aten._cudnn_rnn", WORKSPACE_BYTES, "workspace"),
        ("aten._cudnn_rnn", RESERVE_BYTES, "activation"),
    ]
    kept = [a.num_bytes for a in steps.live("step 2 backward") if "cudnn" in a.operator]
    assert kept == [RESERVE_BYTES]
    assert [a for a in steps.live("step 2 optimizer") if "cudnn" in a.operator] == []


def test_what_is_estimated_says_its_span(steps_of):
    spans = [(reserve(LSTM, 5 * 4, 4, dropout=False)), workspace(LSTM, 5 * 4, 4, 4)]
    made = [a for a in steps_of("lstm").allocations("forward") if a.span_bytes is not None]
    assert [a.span_bytes for a in reversed(made)] == [(s.low_bytes, s.high_bytes) for s in spans]


def test_backward_runs_twice_with_a_workspace_for_data_and_for_weights(steps_of):
    steps = steps_of("lstm")
    assert taken(steps, "backward") == [("aten._cudnn_rnn_backward", WORKSPACE_BYTES, "workspace")] * 2
    gradients = [a.num_bytes for a in steps.allocations("backward") if a.category == "gradient"]
    assert gradients == [WEIGHTS_BYTES]  # one buffer for all


@pytest.mark.parametrize("attribute", ["lstm", "gru", "rnn_tanh", "rnn_relu", "deep_lstm", "projected"])
def test_all_weights_lie_in_one_buffer_that_has_room_for_both_biases(attribute, steps_of):
    numbers = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1, "deep_lstm": 4, "projected": 4}
    shape = {
        "deep_lstm": {"num_layers": 3, "num_directions": 2},
        "projected": {"num_layers": 2, "proj_size": 3},
    }
    network = RecurrentNetwork(
        num_gates=numbers[attribute], input_size=8, hidden_size=6, **shape.get(attribute, {})
    )
    parameters = [a for a in steps_of(attribute).live() if a.category == "parameter"]
    assert [a.num_bytes for a in parameters] == [4 * network.num_weights]


@pytest.mark.parametrize(
    ("network", "options"),
    [
        (nn.LSTM(8, 6), {"num_gates": 4}),
        (
            nn.LSTM(8, 6, num_layers=3, bidirectional=True),
            {"num_gates": 4, "num_layers": 3, "num_directions": 2},
        ),
        (nn.LSTM(8, 6, proj_size=3, num_layers=2), {"num_gates": 4, "proj_size": 3, "num_layers": 2}),
        (nn.GRU(8, 6, num_layers=2), {"num_gates": 3, "num_layers": 2}),
        (nn.RNN(8, 6), {"num_gates": 1}),
    ],
)
def test_the_buffer_has_as_many_elements_as_the_module(network, options):
    described = RecurrentNetwork(input_size=8, hidden_size=6, **options)
    assert described.num_weights == sum(parameter.numel() for parameter in network.parameters())


def test_weights_are_moved_one_by_one_and_then_flattened(steps_of):
    trace = steps_of("lstm").trace
    (start,) = (m.position for m in trace.marks if m.name == "step 1 input")
    moved = [trace.allocations[event].num_bytes for event in trace.events[:start] if event >= 0]
    assert moved == [4 * 24 * 8, 4 * 24 * 6, 4 * 24, 4 * 24, WEIGHTS_BYTES]
    assert sum(event < 0 for event in trace.events[:start]) == 4


def test_a_model_that_flattens_in_every_step_has_two_buffers_for_a_moment(steps_of):
    steps = steps_of("flattens_in_every_step")
    buffers = [a for a in steps.allocations("forward") if a.category == "parameter"]
    assert len(buffers) == 1
    assert [a.category for a in steps.live()].count("parameter") == 1


def test_sequences_with_the_batch_first_are_copied_for_the_length_of_the_call(steps_of):
    steps, usual = steps_of("batch_first"), steps_of("lstm")
    assert steps.outputs("forward")[2] == ("contiguous", INPUT_BYTES)
    assert [size for _, size in steps.outputs("forward") if size != INPUT_BYTES] == [
        size for _, size in usual.outputs("forward")
    ]
    assert INPUT_BYTES not in [a.num_bytes for a in steps.live("step 2 backward") if a.category != "input"]


def test_a_network_without_cells_has_one_state_each_way(steps_of):
    sizes = [size for operator, size in steps_of("gru").outputs("forward") if "cudnn" not in operator]
    assert sizes == [STATE_BYTES, OUTPUT_BYTES, STATE_BYTES, 4]


def test_inference_keeps_no_reserve(steps_of):
    assert [category for _, _, category in taken(steps_of("lstm", mode="infer"), "forward")] == ["workspace"]


def test_dropout_keeps_its_random_states_from_the_first_step_on(steps_of):
    steps = steps_of("deep_lstm")
    states = [a for a in steps.trace.allocations if a.operator == "aten._cudnn_init_dropout_state"]
    assert [a.num_bytes > 2 * 2**20 for a in states] == [True]
    assert states[0] in steps.live()


def test_autocast_copies_all_weights_into_one_buffer_of_half_precision_whatever_its_type(steps_of):
    for precision in ("amp-fp16", "amp-bf16"):
        steps = steps_of("lstm", precision=precision)
        made = steps.allocations("forward")
        assert [(a.num_bytes, a.dtype) for a in made[2:4]] == [
            (WEIGHTS_BYTES // 2, "float16"),
            (INPUT_BYTES // 2, "float16"),
        ]
        assert {a.dtype for a in steps.live() if a.category == "gradient"} == {"float32"}


def test_weights_in_bfloat16_are_not_flattened_and_are_copied_in_every_call(steps_of):
    steps = steps_of("lstm", precision="bf16")
    assert len([a for a in steps.live() if a.category == "parameter"]) == 4
    copies = [a for a in steps.allocations("forward") if a.num_bytes == WEIGHTS_BYTES // 2]
    assert [a.dtype for a in copies] == ["bfloat16"]


def test_a_single_sequence_needs_no_batch_dimension(steps_of):
    assert [category for _, _, category in taken(steps_of("unbatched"), "forward")] == [
        "workspace",
        "activation",
    ]


@pytest.mark.parametrize("attribute", ["lstm", "batch_first", "deep_lstm", "gru"])
def test_gradients_reach_what_they_reach_on_the_cpu(attribute, steps_of):
    workload = Workload.load(f"{SMALL_WORKLOADS}:{attribute}")
    model = workload.build_model()
    workload.loss(model, workload.make_batch(4, torch.device("cpu"))).backward()
    real = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert steps_of(attribute).live_bytes("gradient") == real
