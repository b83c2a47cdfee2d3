"""What a model of transformers is made of, listed by a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from autofit_workers.spec.workloads.references import parse_reference
from autofit_workers.tracing.listing_parts import parts_of
from autofit_workers.trials.model_parts import PartsFailedError, list_parts

TINY = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "dtype": "float16",
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return f"hf:{path}"


def test_parameters_stand_once_with_the_class_of_their_module(config: str) -> None:
    parts = parts_of(parse_reference(config))
    shapes = {each.name: (each.owner, each.shape) for each in parts.parameters}
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == ("Linear", (32, 64))
    assert shapes["model.norm.weight"][0] == "Qwen2RMSNorm"
    assert "lm_head.weight" not in shapes  # it is the table of words
    assert (parts.model_class, parts.dtype) == ("Qwen2ForCausalLM", "float16")
    assert (parts.config["num_key_value_heads"], parts.config["max_position_embeddings"]) == (2, 256)
    assert not parts.is_multimodal


@pytest.mark.process
def test_a_process_lists_the_same(config: str) -> None:
    reference = parse_reference(config)
    assert list_parts(reference, deadline_seconds=120) == parts_of(reference)


@pytest.mark.process
def test_a_name_that_there_is_not_is_one_sentence() -> None:
    with pytest.raises(PartsFailedError, match="did you mean llama") as caught:
        list_parts(parse_reference("hf:lama"), deadline_seconds=120)
    assert caught.value.error is not None


def test_a_model_that_writes_no_text_is_refused() -> None:
    with pytest.raises(Exception, match="does not generate text"):
        parts_of(parse_reference("hf:vit"))
