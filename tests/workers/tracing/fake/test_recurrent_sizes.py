"""cuDNN's sizes for recurrent networks are those that others printed, where they are exact."""

from __future__ import annotations

import pytest

from autofit_workers.tracing.fake.recurrent_sizes import RecurrentNetwork, reserve, workspace

# pytorch/pytorch#2895: 4 layers of 320 units on 123 features; 250 steps of 100 sequences.
LSTM, GRU = (RecurrentNetwork(num_gates=g, input_size=123, hidden_size=320, num_layers=4) for g in (4, 3))
# tensorflow/tensorflow#30889: 2 layers of 512 ReLU units; 20 steps of 64 sequences.
RELU = RecurrentNetwork(num_gates=1, input_size=512, hidden_size=512, num_layers=2)
ALL_ONE = RecurrentNetwork(num_gates=4, input_size=1, hidden_size=1)
LIBRARY_BYTES = 8 * 2**20


def test_parameters_are_those_of_the_published_networks():
    classifier = 321 * 10
    assert (LSTM.num_weights + classifier, GRU.num_weights + classifier) == (3_038_090, 2_279_370)


@pytest.mark.parametrize(("network", "published_bytes"), [(LSTM, 736_000_000), (GRU, 864_000_000)])
def test_the_reserve_is_the_published_one(network, published_bytes):
    assert reserve(network, 250 * 100, 4, dropout=False).likely_bytes == published_bytes


def test_the_workspace_is_the_published_one_of_padded_sequences_and_what_newer_libraries_add():
    assert workspace(RELU, 20 * 64, 64, 4).likely_bytes == 21_496_576 + LIBRARY_BYTES


@pytest.mark.parametrize(("network", "published_bytes"), [(LSTM, 17_730_560), (GRU, 13_169_920)])
def test_the_least_workspace_is_what_the_oldest_library_was_seen_to_need(network, published_bytes):
    assert workspace(network, 250 * 100, 100, 4).low_bytes == published_bytes


def test_the_smallest_network_is_within_alignment_of_the_published_one():
    assert 0 <= LIBRARY_BYTES + 832 - workspace(ALL_ONE, 1, 1, 4).likely_bytes < 832
    assert reserve(ALL_ONE, 1, 4, dropout=False).likely_bytes == 5 * 4  # each aligned to 64 there


@pytest.mark.parametrize("network", [LSTM, GRU, RELU, ALL_ONE])
@pytest.mark.parametrize("element_bytes", [2, 4, 8])
@pytest.mark.parametrize("dropout", [True, False])
def test_low_likely_and_high_are_in_order(network, element_bytes, dropout):
    for span in (
        reserve(network, 20 * 64, element_bytes, dropout=dropout),
        workspace(network, 20 * 64, 64, element_bytes),
    ):
        assert 0 < span.low_bytes <= span.likely_bytes <= span.high_bytes


def test_sizes_grow_by_the_same_with_every_sequence():
    network = RecurrentNetwork(
        num_gates=4, input_size=7, hidden_size=5, proj_size=3, num_layers=3, num_directions=2
    )
    for sizes in (
        [reserve(network, 9 * batch_size, 2, dropout=True).likely_bytes for batch_size in (4, 5, 6)],
        [workspace(network, 9 * batch_size, batch_size, 2).likely_bytes for batch_size in (4, 5, 6)],
    ):
        assert sizes[2] - sizes[1] == sizes[1] - sizes[0] > 0
