"""Losses of causal language models that never hold all logits: what they compute, and what they hold."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autofit_workers.apply.adapter import with_adapter
from autofit_workers.apply.loss import set_loss
from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.errors import InapplicableError, MissingLibraryError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialSpec, Verdict
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.trials.run import run
from autofit_workers.workload.libraries.importing import imported

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
transformers: Any = imported("transformers", "a test")
if not hasattr(torch.nn.functional, "linear_cross_entropy"):
    pytest.skip("this PyTorch has no linear_cross_entropy", allow_module_level=True)
VOCABULARY, HIDDEN, TOKENS, BATCH = 2048, 64, 16, 6
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}


def model_of(kind: str = "llama", **options: Any) -> nn.Module:
    config = transformers.AutoConfig.for_model(kind, **SIZES, **options)
    made: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return made


def tokens_with_padding() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(VOCABULARY, (2, TOKENS), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    labels[1, 5:] = -100
    return tokens, labels


@pytest.mark.parametrize(
    ("kind", "options"), [("llama", {}), ("granite", {"logits_scaling": 4.0}), ("phi", {})]
)
@pytest.mark.parametrize("loss", ["chunked", "chunked:3"])
def test_loss_and_gradients_are_the_models_own(kind: str, options: dict[str, Any], loss: str) -> None:
    torch.manual_seed(0)
    plain = model_of(kind, **options)
    chunked = copy.deepcopy(plain)
    set_loss(chunked, loss)
    tokens, labels = tokens_with_padding()
    losses = [model(input_ids=tokens, labels=labels).loss for model in (plain, chunked)]
    torch.testing.assert_close(losses[1], losses[0])
    for each in losses:
        each.backward()
    for one, other in zip(plain.parameters(), chunked.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)


def test_a_loss_that_is_divided_by_the_tokens_of_a_whole_step_is_that() -> None:
    torch.manual_seed(0)
    plain = model_of()
    chunked = copy.deepcopy(plain)
    set_loss(chunked, "chunked:2")
    tokens, labels = tokens_with_padding()
    first, second = (
        model(input_ids=tokens, labels=labels, num_items_in_batch=40).loss for model in (plain, chunked)
    )
    torch.testing.assert_close(second, first)


def traced(folder: Path, batch_size: int = BATCH, **knobs: str) -> Trace:
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": False, **SIZES}))
    outcome = run(
        TrialSpec(
            workload=parse_reference(f"hf:{file}"),
            batch_size=batch_size,
            probe=Probe.PREDICT,
            knobs=Knobs(precision="bf16", seq_len=TOKENS, **knobs),
        )
    )
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert outcome.trace_json is not None
    return Trace.from_json(outcome.trace_json)


def largest(trace: Trace, num: int) -> list[int]:
    """Sizes of the largest allocations of the last step, but for those of weights and their gradients."""
    begin = trace.marks[-4].position
    made = [trace.allocations[event] for event in trace.events[begin:] if event >= 0]
    return sorted((a.num_bytes for a in made if a.shape != (VOCABULARY, HIDDEN)), reverse=True)[:num]


def test_all_logits_are_there_in_bf16_and_float32_and_so_are_their_gradients(tmp_path: Path) -> None:
    # Of the product, its copy, the logarithms of shares; of the gradients of shares, logarithms and logits.
    logits = BATCH * TOKENS * VOCABULARY
    halves, singles = 2 * [2 * logits], 4 * [4 * logits]
    assert largest(traced(tmp_path, loss="full"), 6) == [*singles, *halves]


@pytest.mark.parametrize("number", [1, 4, 5])
def test_chunks_share_one_buffer_of_float32_logits(tmp_path: Path, number: int) -> None:
    rows = -(-BATCH * TOKENS // number)
    # The logits, and for each chunk their gradients in bf16.
    expected = [4 * rows * VOCABULARY, *number * [2 * rows * VOCABULARY]]
    if number == 5:
        expected[-1] = 2 * (BATCH * TOKENS - 4 * rows) * VOCABULARY
    assert largest(traced(tmp_path, loss=f"chunked:{number}"), 1 + number) == expected


def test_sizes_at_other_batches_follow_from_three(tmp_path: Path) -> None:
    def peak_bytes(*sizes: int) -> int:
        curve = PeakCurve.through([traced(tmp_path, size, loss="chunked:4") for size in sizes])
        return curve.on_card(16, Conditions()).likely().replay.peak_allocated_bytes

    assert peak_bytes(2, 3, 5) == peak_bytes(16)


def test_a_loss_beside_an_adapter_keeps_no_gradient_of_the_frozen_head(tmp_path: Path) -> None:
    trained = traced(tmp_path, loss="chunked:4")
    frozen = traced(tmp_path, loss="chunked:4", adapter="lora:r=4")

    def num_gradients(trace: Trace) -> int:
        return sum(a.shape == (VOCABULARY, HIDDEN) and "zeros" in a.operator for a in trace.allocations)

    assert num_gradients(trained) > 0
    assert num_gradients(frozen) == 0


def test_models_without_such_a_loss_are_told_so() -> None:
    with pytest.raises(
        InapplicableError, match="causal language models of transformers, which Linear is not"
    ):
        set_loss(nn.Linear(2, 2), "chunked")
    capped = model_of("gemma2", head_dim=16, final_logit_softcapping=30.0)
    set_loss(capped, "chunked")
    tokens, labels = tokens_with_padding()
    with pytest.raises(InapplicableError, match="cannot cap logits"):
        capped(input_ids=tokens, labels=labels)


def test_a_head_with_an_adapter_of_its_own_is_refused() -> None:
    adapted = with_adapter(model_of(), "lora:r=4,targets=lm_head")
    with pytest.raises(InapplicableError, match="leave it out of the adapter, or the loss at full"):
        set_loss(adapted, "chunked")


def test_a_model_that_is_given_no_labels_has_no_loss() -> None:
    model = model_of()
    set_loss(model, "chunked")
    with pytest.raises(InapplicableError, match="needs a model that is given labels"):
        model(input_ids=tokens_with_padding()[0])


def test_a_library_that_is_not_installed_is_said_how_to_get(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for name in [each for each in sys.modules if each.startswith("liger_kernel")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(
        MissingLibraryError, match=r"fused is a loss of liger-kernel.*pip install liger-kernel"
    ):
        set_loss(model_of(), "fused")
