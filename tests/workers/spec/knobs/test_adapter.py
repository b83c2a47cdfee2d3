"""Adapters as they are written: METHOD:KEY=VALUE,…, and what peft saves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.knobs.adapter import split_adapter


@pytest.mark.parametrize(
    ("text", "method", "options"),
    [
        ("lora", "lora", {}),
        ("LoRA:r=16", "lora", {"r": 16}),
        ("p-tuning:num_virtual_tokens=20", "p_tuning", {"num_virtual_tokens": 20}),
        (
            "lora:r=8,targets=q_proj,v_proj,use_rslora=true,alpha=1e1",
            "lora",
            {"r": 8, "targets": ["q_proj", "v_proj"], "use_rslora": True, "alpha": 10.0},
        ),
        ("trainable_tokens:token_indices=1,2", "trainable_tokens", {"token_indices": [1, 2]}),
        (
            '{"peft_type": "OSF", "rank_pattern": {"q": 8}, "revision": null}',
            "osf",
            {"rank_pattern": {"q": 8}},
        ),
    ],
)
def test_a_method_and_its_options_are_read(text: str, method: str, options: dict[str, object]):
    assert split_adapter(text) == (method, options)


@pytest.mark.parametrize(
    "text",
    ["lora:r=16,targets=q,v,bias=none", "ia3", '{"peft_type": "OSF", "rank_pattern": {"q": 8, "k": 4}}'],
)
def test_what_was_read_is_written_so_that_it_reads_the_same(text: str):
    adapter = Knobs(adapter=text).adapter
    assert split_adapter(adapter) == split_adapter(text)
    assert Knobs(adapter=adapter).adapter == adapter


def test_a_file_of_peft_becomes_part_of_the_setting(tmp_path: Path):
    file = tmp_path / "adapter_config.json"
    saved = {
        "peft_type": "LORA",
        "r": 4,
        "task_type": "CAUSAL_LM",
        "peft_version": "0.21.2",
        "lora_alpha": None,
    }
    file.write_text(json.dumps(saved))
    assert Knobs(adapter=KNOBS["adapter"].from_user(str(file))).adapter == "lora:r=4"


def test_a_setting_that_is_read_again_opens_no_file(tmp_path: Path):
    (file := tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ValueError, match=r"adapter: .* names no method"):
        Knobs(adapter=str(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lora:r=0", "r=0 .* is a rank: give a whole number of 1 or more"),
        ("lora:rank=-4", "rank=-4 .* is a rank"),
        ("lora:r=1.5", "r=1.5 .* is a rank"),
        ("lora:16", "'16' of 'lora:16' is no KEY=VALUE, as in lora:r=16"),
        ("lora:r=", "'r=' .* is no KEY=VALUE"),
        ("lora:r=1,r=2", "says r twice"),
        (":r=1", "names no method"),
        ("{", "is no JSON"),
        ('{"r": 8}', "it has no peft_type"),
        ('{"peft_type": "OSF", "a": ' + "[" * 3000 + "]" * 3000 + "}", "nests more than 64 levels"),
    ],
)
def test_what_is_written_wrongly_is_said_in_one_sentence(text: str, said: str):
    with pytest.raises(ValueError, match=f"adapter: .*{said}") as raised:
        Knobs(adapter=text)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_missing_too_long_or_no_text_is_not_taken(tmp_path: Path):
    with pytest.raises(ValueError, match=r"missing\.json cannot be read"):
        KNOBS["adapter"].from_user("missing.json")
    for content in (b" " * 200_000, b"\xff\xfe\x00"):
        (file := tmp_path / "adapter_config.json").write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read"):
            KNOBS["adapter"].from_user(str(file))
