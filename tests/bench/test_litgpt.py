"""The bench of LitGPT's tables finds the configuration of a row whose checkpoint is written otherwise."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
import yaml

from tests.bench.language import litgpt


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configurations called `lora.yaml`, of these checkpoints, at the first commit of the table."""
    first, *others = litgpt._HUB_COMMITS
    for commit in others:
        (tmp_path / commit).mkdir()
    for name in ("Llama-2-7b-hf", "Llama-2-13b-hf", "tiny-llama-1.1b", "gemma-7b", "gemma-7b-it"):
        folder = tmp_path / first / "config_hub" / "finetune" / name
        folder.mkdir(parents=True)
        (folder / "lora.yaml").write_text(yaml.safe_dump({"checkpoint_dir": f"checkpoints/of/{name}"}))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("row", "checkpoint"),
    [
        ("Llama-2-7b-hf", "Llama-2-7b-hf"),
        ("llama-2-7B-hf", "Llama-2-7b-hf"),
        ("Llama-2-7b", "Llama-2-7b-hf"),
        ("Tiny-Llama-1.1B-chat", "tiny-llama-1.1b"),
        ("gemma-7b", "gemma-7b"),
        ("gemma-7b-it", "gemma-7b-it"),
    ],
)
def test_a_configuration_is_found_by_the_words_of_its_checkpoint(
    library: Path, row: str, checkpoint: str
) -> None:
    _commit, options = litgpt._found(yaml, row, "lora.yaml")
    assert options["checkpoint_dir"].endswith(f"/{checkpoint}")


@pytest.mark.parametrize("row", ["Llama-2-70b", "phi-2"])
def test_another_model_is_not_taken_for_it(library: Path, row: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"no configuration lora\.yaml"):
        litgpt._found(yaml, row, "lora.yaml")


def test_the_tokenizer_has_the_tokens_that_styles_of_prompts_look_up(tmp_path: Path) -> None:
    text = 'tokenizer.token_to_id("<|end|>"), tokenizer.token_to_id("<|end|>"), self.token_to_id("a")'
    (tmp_path / "prompts.py").write_text(text)
    made_up = types.SimpleNamespace(__file__=str(tmp_path / "__init__.py"))
    assert litgpt._asked_words(made_up) == ["<|end|>"]
    assert litgpt._asked_words(types.SimpleNamespace(__file__=str(tmp_path / "x" / "__init__.py"))) == []
