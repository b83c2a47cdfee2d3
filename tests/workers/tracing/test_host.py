"""Predictions for the CPU: its blocks are those of PyTorch's own CPU allocator."""

from __future__ import annotations

import itertools

import pytest
import torch

from autofit_workers.replay.curve.host_blocks import (
    MAPPED_FROM_BYTES,
    asked_bytes,
    block_bytes,
    identity,
    touched_bytes,
)
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.protocol import HOST_ARCHITECTURE, Verdict
from autofit_workers.spec.trace import Category, Trace
from tests.workers.predicted import peaks_of
from tests.workers.tracing.test_against_cpu import allocator_events_on_cpu, load, predicted_events

PAGE_BYTES = 4096
BATCH_SIZES = (4, 6, 10)


@pytest.fixture(scope="module")
def host_trace(outcome_of):
    """Traces a small workload on the CPU, once for all tests."""
    traces: dict[tuple[str, int], Trace] = {}

    def trace(attribute: str, batch_size: int = 4) -> Trace:
        key = (attribute, batch_size)
        if key not in traces:
            outcome = outcome_of(attribute, batch_size, architecture=HOST_ARCHITECTURE)
            assert outcome.verdict is Verdict.TRACED, outcome.error
            traces[key] = Trace.from_json(outcome.trace_json)
        return traces[key]

    return trace


@pytest.fixture(scope="module")
def steps_of(host_trace):
    return lambda attribute: PeakCurve.through([host_trace(attribute, size) for size in BATCH_SIZES])


class Steps:
    """What `predicted_events` reads of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace


def peak_of(changes: list[int]) -> int:
    return max(itertools.accumulate(changes))


@pytest.mark.parametrize(
    "attribute",
    [
        "perceptron",
        "silu",
        "rms_norm",
        "dropout",
        "checkpointed",
        "accumulating",
        "averaged",
        "adversarial",
        "language",
        "gru",
    ],
)
def test_allocations_and_frees_are_those_of_a_real_run(attribute, host_trace):
    assert predicted_events(Steps(host_trace(attribute))) == allocator_events_on_cpu(load(attribute))


@pytest.mark.parametrize("attribute", ["convolutional", "volumes", "lstm", "deep_lstm"])
def test_what_onednn_takes_is_within_small_blocks_of_a_real_run(attribute, host_trace):
    """Blocks below a page are left out, and here all are small."""
    predicted_bytes = peak_of(predicted_events(Steps(host_trace(attribute))))
    real_bytes = peak_of(allocator_events_on_cpu(load(attribute)))
    assert 0.8 * real_bytes < predicted_bytes <= real_bytes


def test_what_onednn_takes_is_of_the_threads_that_were_asked_for(outcome_of):
    """Earlier predictions in the same process, with other threads, leave nothing of theirs behind."""

    def peak_bytes(num_threads: int | None) -> int:
        outcome = outcome_of("convolutional", architecture=HOST_ARCHITECTURE, num_threads=num_threads)
        return peaks_of(outcome).allocated_bytes

    default, one, three, default_again = map(peak_bytes, (None, 1, 3, None))
    assert default_again == default
    assert one < three


def test_an_lstm_keeps_the_workspace_that_the_fake_mode_leaves_empty(host_trace):
    layers = [a for a in host_trace("lstm").allocations if a.operator == "aten.mkldnn_rnn_layer"]
    assert any(a.dtype == "uint8" and a.num_bytes >= PAGE_BYTES for a in layers)


def test_a_perceptron_grows_by_exactly_its_blocks(steps_of):
    """Every tensor of it is of 4-byte numbers, each of which grows by whole numbers a sample."""
    steps = steps_of("perceptron")
    num_samples = 2**16  # every tensor that grows is a mapping then, and ends in the middle of no page
    first, second, third = (asked_bytes(steps.at(count * num_samples)) for count in (1, 2, 3))
    assert third - second == second - first
    per_sample, rest = divmod(second - first, num_samples)
    assert (per_sample % 4, rest) == (0, 0)
    assert touched_bytes(steps.at(num_samples)) == first  # nothing here asks for more than it writes to


def test_a_block_is_rounded_as_malloc_does_and_not_to_segments():
    assert [block_bytes(size) for size in (0, 1, 64, 65)] == [0, 64, 64, 128]
    assert block_bytes(MAPPED_FROM_BYTES) % PAGE_BYTES == 0
    assert block_bytes(2**20) - 2**20 == PAGE_BYTES  # the caching allocator takes 2 MiB for it


def test_the_step_is_named_without_what_was_measured_of_the_machine(host_trace, steps_of):
    digests = {identity(steps_of(name).trace) for name in ("convolutional", "perceptron")}
    assert len(digests) == 2
    assert identity(steps_of("convolutional").trace) in digests


def test_an_optimizer_reads_its_count_of_steps(host_trace):
    """Adam counts in a tensor and asks for its value; foreach is no default on the CPU."""
    operators = {a.operator for a in host_trace("half").allocations}
    assert not any(operator.startswith("aten._foreach") for operator in operators)


def test_a_value_that_a_step_reads_is_made_up(outcome_of):
    outcome = outcome_of("item", architecture=HOST_ARCHITECTURE)
    assert outcome.verdict is Verdict.TRACED, outcome.error


def test_a_batch_that_reads_values_is_made_for_real(host_trace):
    trace = host_trace("reads_values_in_its_batch")
    inputs = [a for a in trace.allocations if a.category is Category.INPUT]
    assert [a.num_bytes for a in inputs] == [4 * 16 * torch.float32.itemsize] * 3
