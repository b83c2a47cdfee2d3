"""Batches of tokens that are padded or packed: what models make of them, and what is predicted of that."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from autofit_workers.replay.curve.conditions import Conditions
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, WorkloadRef
from autofit_workers.spec.trace import Trace
from autofit_workers.trials.run import run
from autofit_workers.workload.libraries.importing import imported
from autofit_workers.workload.libraries.token_batches import tokens_with_labels, unpackable_tokens
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.workload import Workload, check_batch

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)
transformers: Any = imported("transformers", "a test")
VOCABULARY, TOKENS, HEADS, WIDTH, LAYERS = 64, 32, 4, 16, 2
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HEADS * WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "max_position_embeddings": TOKENS,
}
CONFIG = transformers.LlamaConfig(**SIZES)


def batch_of(layout: str, batch_size: int = 3) -> dict[str, torch.Tensor]:
    batch = tokens_with_labels(batch_size, torch.device("cpu"), config=CONFIG, size=TOKENS, layout=layout)
    check_batch(batch, batch_size)
    return batch


def logits_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIG)
    model.config.use_cache = False
    given = {name: batch[name] for name in batch if name not in ("labels", "seq_lengths")}
    with torch.no_grad():
        logits: torch.Tensor = model(**given).logits
    return logits


def test_padding_is_masked_and_its_labels_count_for_nothing() -> None:
    batch = batch_of("padded:25")
    assert batch["attention_mask"].sum(1).tolist() == [24] * 3
    assert (batch["labels"] == -100).sum(1).tolist() == [8] * 3
    alone = {"input_ids": batch["input_ids"][:, :24]}
    torch.testing.assert_close(logits_of(batch)[:, :24], logits_of(alone))


@pytest.mark.parametrize("layout", ["packed:2", "padding-free:2", "padding-free"])
def test_sequences_that_follow_each_other_do_not_see_each_other(layout: str) -> None:
    batch = batch_of(layout)
    length = TOKENS if layout == "padding-free" else TOKENS // 2
    alone = {"input_ids": batch["input_ids"].reshape(-1, length)}
    together = logits_of(batch).reshape(-1, length, VOCABULARY)
    torch.testing.assert_close(together, logits_of(alone))
    assert batch["input_ids"].shape == ((3, TOKENS) if layout == "packed:2" else (1, 3 * TOKENS))


@pytest.mark.parametrize("number", [2, 5, 20, 32])
def test_a_sample_has_as_many_sequences_as_are_asked_for(number: int) -> None:
    positions = batch_of(f"packed:{number}")["position_ids"]
    assert (positions == 0).sum(1).tolist() == [number] * 3
    assert int(positions.max()) + 1 == math.ceil(TOKENS / number)


def test_more_sequences_than_tokens_are_refused() -> None:
    with pytest.raises(InapplicableError, match=r"more sequences than a sample has tokens \(32\)"):
        batch_of("packed:33")


def test_models_with_a_sequence_a_sample_are_padded_and_not_packed() -> None:
    config = transformers.BertConfig(**SIZES)
    told = {"config": config, "size": TOKENS}
    padded = unpackable_tokens(2, torch.device("cpu"), layout="padded:50", **told)
    assert padded["attention_mask"].sum().item() == TOKENS
    with pytest.raises(InapplicableError, match="causal language models, which bert is not here"):
        unpackable_tokens(2, torch.device("cpu"), layout="packed:2", **told)


def test_a_workload_of_ones_own_is_told_the_layout_where_its_batches_take_it() -> None:
    def make_batch(batch_size: int, device: torch.device, layout: str = "full") -> tuple[str, int]:
        return layout, batch_size

    def build() -> torch.nn.Module:
        return torch.nn.Linear(1, 1)

    def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return torch.zeros(())

    workload = Workload(build_model=build, make_batch=make_batch, loss=loss)
    knobs = Knobs(batch_layout="padded:25")
    assert with_overrides(workload, knobs).make_batch(2, torch.device("cpu")) == ("padded:25", 2)
    fixed = Workload(build_model=build, make_batch=lambda size, device: size, loss=loss)
    with pytest.raises(InapplicableError, match="let its make_batch take a keyword layout"):
        with_overrides(fixed, knobs)


def predicted(folder: Path, batch_size: int = 2, **knobs: str) -> TrialOutcome:
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": "llama", **SIZES}))
    return run(
        TrialSpec(
            workload=WorkloadRef(kind="library", target=f"hf:{file}"),
            batch_size=batch_size,
            probe=Probe.PREDICT,
            knobs=Knobs(precision="bf16", **knobs),
        )
    )


def traced(folder: Path, batch_size: int = 2, **knobs: str) -> Trace:
    outcome = predicted(folder, batch_size, **knobs)
    assert outcome.trace_json is not None, outcome.error
    return Trace.from_json(outcome.trace_json)


def live_bytes(trace: Trace, shape: tuple[int, ...]) -> int:
    """What is live of tensors of a shape as backward of the last step begins."""
    (begin,) = (mark.position for mark in trace.marks if mark.name == "step 3 backward")
    alive: set[int] = set()
    for event in trace.events[:begin]:
        alive = alive | {event} if event >= 0 else alive - {~event}
    return sum(trace.allocations[i].num_bytes for i in alive if trace.allocations[i].shape == shape)


@pytest.mark.parametrize(
    ("layout", "rows", "length"),
    [("padded:25", 2, TOKENS), ("packed:4", 2, TOKENS), ("padding-free", 1, 2 * TOKENS)],
)
def test_a_mask_of_each_row_is_kept_by_every_layers_attention(
    layout: str, rows: int, length: int, tmp_path: Path
) -> None:
    scores = (rows, 1, length, length)
    assert live_bytes(traced(tmp_path, batch_layout="full"), scores) == 0
    assert (
        live_bytes(traced(tmp_path, batch_layout=layout), scores) >= LAYERS * 2 * rows * length**2
    )  # in bf16


@pytest.mark.parametrize(
    ("layout", "num_kept"),
    [("padded:25", 2 * 24), ("padding-free:2", 2 * TOKENS), ("padding-free", 2 * TOKENS)],
)
def test_flash_attention_takes_tokens_without_padding_and_no_mask(
    layout: str, num_kept: int, tmp_path: Path
) -> None:
    trace = traced(tmp_path, attention="fa2", batch_layout=layout)
    made = [a for a in trace.allocations if a.operator == "flash_attn._flash_attn_varlen_forward"]
    assert {a.shape for a in made if len(a.shape) == 3} == {(num_kept, HEADS, WIDTH)}
    assert not any(a.shape[-2:] == (TOKENS, TOKENS) for a in trace.allocations)
    assert trace.assumptions == ()


@pytest.mark.parametrize("attention", ["default", "fa2"])
@pytest.mark.parametrize("layout", ["padded:25", "packed:3", "padding-free:2"])
def test_sizes_at_other_batches_follow_from_three(attention: str, layout: str, tmp_path: Path) -> None:
    def peak_bytes(*sizes: int) -> int:
        traces = [traced(tmp_path, size, attention=attention, batch_layout=layout) for size in sizes]
        return PeakCurve.through(traces).on_card(16, Conditions()).likely().replay.peak_allocated_bytes

    assert peak_bytes(2, 3, 5) == peak_bytes(16)


def test_images_are_not_padded(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1}))
    knobs = Knobs(batch_layout="padded:25")
    spec = TrialSpec(
        workload=WorkloadRef(kind="library", target=f"hf:{file}"),
        batch_size=2,
        probe=Probe.PREDICT,
        knobs=knobs,
    )
    error = run(spec).error
    assert error is not None
    assert (error.kind, "makes one layout of batches" in error.message) == ("inapplicable", True)
