"""Kernels of Liger in models of transformers: what is no longer held, and where there are none."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Probe, TrialOutcome, TrialSpec, Verdict
from autofit_workers.spec.trace import Trace
from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.trials.run import run

for needed in ("transformers", "liger_kernel"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed", allow_module_level=True)
VOCABULARY, TOKENS, BATCH, INNER = 4096, 32, 4, 96
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}


def predicted(folder: Path, config: dict[str, Any] = CONFIG, **knobs: Any) -> TrialOutcome:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return run(
        TrialSpec(
            workload=parse_reference(f"hf:{file}"),
            batch_size=BATCH,
            probe=Probe.PREDICT,
            knobs=Knobs(seq_len=TOKENS, **knobs),
        )
    )


def traced(folder: Path, **knobs: Any) -> Trace:
    outcome = predicted(folder, **knobs)
    assert outcome.verdict is Verdict.TRACED, outcome.error
    assert outcome.trace_json is not None
    return Trace.from_json(outcome.trace_json)


def num_of_size(trace: Trace, num_bytes: int) -> int:
    return sum(each.num_bytes == num_bytes for each in trace.allocations)


@pytest.mark.parametrize("adapter", [None, "lora:r=4"])
def test_logits_are_never_whole_and_a_feed_forward_layer_keeps_less(
    tmp_path: Path, adapter: str | None
) -> None:
    liger, plain = traced(tmp_path, adapter=adapter, kernels="liger"), traced(tmp_path, adapter=adapter)
    logits_bytes, inner_bytes = (4 * BATCH * TOKENS * width for width in (VOCABULARY, INNER))
    assert num_of_size(plain, logits_bytes) > 0
    assert num_of_size(liger, logits_bytes) == 0
    assert 0 < num_of_size(liger, inner_bytes) < num_of_size(plain, inner_bytes)


def test_beside_another_loss_liger_brings_none(tmp_path: Path) -> None:
    chunked = traced(tmp_path, kernels="liger", loss="chunked:2")
    assert num_of_size(chunked, 4 * BATCH * TOKENS * VOCABULARY // 2) > 0


def test_models_without_such_kernels_are_told_so(tmp_path: Path) -> None:
    outcome = predicted(tmp_path, {**CONFIG, "model_type": "gpt2"}, kernels="liger")
    assert outcome.error is not None
    assert outcome.error.message == "Liger has no kernels for models of type gpt2: leave kernels at default"
