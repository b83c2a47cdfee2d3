"""What a rank has that shares sequences with others, by PyTorch's own context parallelism."""

from __future__ import annotations

import pytest

from autofit_workers.spec.protocol import HOST_ARCHITECTURE, Probe, Verdict
from autofit_workers.spec.trace import Category, Trace
from tests.workers.tracing.recording.test_sharding import live_bytes, most_live, predicted, trace_of

KNOBS = {"precision": "amp-bf16"}


@pytest.fixture(scope="module")
def alone() -> Trace:
    return trace_of("attending", "ddp:1", **KNOBS)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_a_rank_has_its_share_of_activations_and_all_parameters(num_ranks, alone):
    trace = trace_of("attending", f"cp:{num_ranks}", rank=1, **KNOBS)
    for category in (Category.PARAMETER, Category.OPTIMIZER_STATE):
        assert live_bytes(trace, category) == live_bytes(alone, category)
    share = most_live(trace, Category.ACTIVATION) / most_live(alone, Category.ACTIVATION)
    assert share == pytest.approx(1 / num_ranks, rel=0.15)  # autocast's copies of weights are whole
    assert trace.notes[0].startswith(
        f"context_parallel: each of {num_ranks} ranks has 1/{num_ranks} of every"
    )


def test_keys_and_values_of_the_others_are_gathered():
    gathered = [a for a in trace_of("attending", "cp:2", **KNOBS).allocations if "all_gather" in a.operator]
    assert gathered
    # Of both ranks, keys and values of 4 samples, 4 heads of 16 numbers and 128 places, in two bytes.
    assert {a.num_bytes for a in gathered} == {2 * 2 * 4 * 4 * 16 * 128 * 2}


def test_parameters_are_sharded_over_ranks_of_a_context_too(alone):
    sharded = trace_of("attending", "fsdp:2,cp:2", **KNOBS)
    for category in (Category.PARAMETER, Category.OPTIMIZER_STATE):
        assert live_bytes(sharded, category) == pytest.approx(live_bytes(alone, category) / 4, rel=0.01)


def test_a_context_is_shared_in_inference_and_with_accumulated_and_clipped_gradients():
    for knobs in (
        {"mode": "infer"},
        {"grad_accumulation": 2, "clip_grad_norm": 1.0, "checkpointing": "blocks"},
    ):
        outcome = predicted("attending", "cp:2", **KNOBS, **knobs)
        assert outcome.verdict is Verdict.TRACED, outcome.error


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("attending_to_odd", KNOBS, "and 250 tokens are not a multiple of 4: take 248"),
        ("attending_to_window", KNOBS, "layers of LlamaForCausalLM attend to a window"),
        (
            "shifting",
            KNOBS,
            "a rank has 128 places of a sequence and attends to 127: let make_batch shift targets",
        ),
        ("llama", KNOBS, "and this one never called it"),
        ("resnet", {}, "the batch has no tensor of integers with a row for each sample"),
        ("attending", {}, "needs a fused kernel of attention, and none that is enabled takes float32"),
        ("attending", {"architecture": HOST_ARCHITECTURE}, "is for GPUs, whose kernels of attention"),
        ("attending", {"probe": Probe.CPU}, "is predicted and not measured"),
    ],
)
def test_what_cannot_share_a_context_is_refused_in_a_sentence(name, options, message):
    outcome = predicted(name, "cp:2", **options)
    assert outcome.error.kind == "inapplicable"
    assert message in outcome.error.message
