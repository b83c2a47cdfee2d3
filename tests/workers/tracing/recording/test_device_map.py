"""Layers that are dealt out to several cards of one process, as accelerate deals them out."""

from __future__ import annotations

import pytest

from autofit_workers.spec.protocol import HOST_ARCHITECTURE, Probe, TrialOutcome, Verdict
from autofit_workers.spec.trace import Category, Trace
from tests.workers.tracing.recording.test_sharding import live_bytes, predicted, trace_of

pytest.importorskip("accelerate")


def cards_of(name: str, num_cards: int = 2, **knobs) -> list[Trace]:
    return [trace_of(name, f"device-map:{num_cards}", rank=card, **knobs) for card in range(num_cards)]


@pytest.fixture(scope="module")
def llamas() -> list[Trace]:
    return cards_of("llama", optimizer="adamw")


def require_each_once(cards: list[Trace], alone: Trace) -> None:
    """Weights and their states are on one card each; beside large ones, not to the byte."""
    for kind in (Category.PARAMETER, Category.OPTIMIZER_STATE):
        each = [live_bytes(card, kind) for card in cards]
        assert min(each) > 0
        assert sum(each) == pytest.approx(live_bytes(alone, kind), abs=2048)


def test_each_weight_and_its_state_is_on_one_card(llamas):
    require_each_once(llamas, trace_of("llama", "ddp:1", optimizer="adamw"))


def test_a_model_of_no_library_is_dealt_out_by_its_repeated_blocks():
    require_each_once(cards_of("perceptrons"), trace_of("perceptrons", "ddp:1"))


def test_blocks_run_again_on_their_card_and_gradients_are_scaled_and_clipped_on_both():
    knobs = {"precision": "amp-fp16", "checkpointing": "blocks", "clip_grad_norm": 1.0}
    for card in cards_of("llama", **knobs):
        assert any(each.operator.startswith("aten._foreach_norm") for each in card.allocations)


def test_the_first_card_has_the_batch_and_the_next_a_copy_of_what_it_computed(llamas):
    first, second = llamas
    assert any(each.category is Category.INPUT for each in first.allocations)
    assert not any(each.category is Category.INPUT for each in second.allocations)
    marks = {mark.name: mark.position for mark in second.marks}
    forward = second.events[marks["step 3 forward"] : marks["step 3 backward"]]
    computed = next(event for event in forward if event >= 0)
    assert second.allocations[computed].operator == "aten._to_copy"


def test_cards_are_told_apart_and_exchange_nothing_by_nccl(llamas):
    first, second = llamas
    assert (first.parallel, first.rank, second.rank) == ("device-map:2", 0, 1)
    assert first.groups == second.groups == ()
    assert "card 0 has model.embed_tokens and model.layers.0; card 1 has" in first.notes[0]


def test_quantized_weights_are_dealt_out_by_their_own_sizes():
    pytest.importorskip("bitsandbytes")
    cards = cards_of("llama", base="nf4", adapter="lora:r=4", precision="bf16")
    quantized = [
        sum(each.num_bytes for each in card.allocations if each.operator == "bitsandbytes.quantize_4bit")
        for card in cards
    ]
    assert min(quantized) > 0


def refused(*args, **options) -> str:
    outcome: TrialOutcome = predicted(*args, **options)
    assert outcome.verdict is Verdict.FAILED
    assert outcome.error.kind == "inapplicable"
    return outcome.error.message


def test_more_cards_than_accelerate_uses_are_refused():
    assert "of the cards, as its largest layers have no room for more: " in refused("llama", "device-map:64")


def test_it_is_predicted_for_cards_alone():
    assert "deals layers out to GPUs" in refused("llama", "device-map:2", HOST_ARCHITECTURE)
    assert "is predicted and not measured" in refused("llama", "device-map:2", probe=Probe.CPU)
