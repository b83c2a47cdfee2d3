"""What cuDNN really asks for to train a recurrent network lies in the span that is predicted."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from autofit_workers.tracing.fake.recurrent_sizes import RecurrentNetwork, reserve

pytestmark = pytest.mark.gpu

NUM_STEPS, BATCH_SIZE, INPUT_SIZE = 35, 20, 96


# The module, its number among cuDNN's modes, its gates.
KINDS = [(nn.LSTM, 2, 4), (nn.GRU, 3, 3), (nn.RNN, 1, 1)]
SHAPES = [*itertools.product((128, 650), (1, 3), (False, True))]


@pytest.mark.parametrize(("hidden_size", "num_layers", "bidirectional"), SHAPES)
@pytest.mark.parametrize("cell", KINDS)
def test_weights_and_reserve_are_as_predicted(cell, hidden_size, num_layers, bidirectional):
    kind, mode, num_gates = cell
    module = kind(INPUT_SIZE, hidden_size, num_layers=num_layers, bidirectional=bidirectional).cuda()
    network = RecurrentNetwork(
        num_gates=num_gates,
        input_size=INPUT_SIZE,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_directions=2 if bidirectional else 1,
    )
    weights = list(module.parameters())
    assert weights[0].untyped_storage().nbytes() == 4 * network.num_weights
    buffer = weights[0].detach().as_strided((network.num_weights,), (1,), 0)
    state = torch.zeros(num_layers * network.num_directions, BATCH_SIZE, hidden_size, device="cuda")
    x = torch.randn(NUM_STEPS, BATCH_SIZE, INPUT_SIZE, device="cuda")
    _, _, _, kept, _ = torch.ops.aten._cudnn_rnn(
        x, weights, 4, buffer, state, state if kind is nn.LSTM else None, mode, hidden_size, 0, num_layers,
        False, 0.0, True, bidirectional, [], None,
    )  # fmt: skip
    span = reserve(network, NUM_STEPS, BATCH_SIZE, 4, dropout=False)
    assert span.low_bytes <= kept.numel() <= span.high_bytes
