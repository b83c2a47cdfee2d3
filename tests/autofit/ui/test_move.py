"""What a request says of the page's controls: read, refused, and written down again."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from autofit.errors import UsageError
from autofit.settings.resolve import resolve_settings
from autofit.ui.move import Move
from tests.fuzz import hostile


def move(**values: Any) -> Move:
    body = {"tab": "a", "number": 1, "model": "gpt2", "batch_size": "8", **values}
    return Move.from_json(json.dumps(body).encode())


def test_empty_controls_are_options_that_are_not_given():
    read = move(precision="bf16", adapter="", seq_len=" 128 ", optimizer=None)
    assert read.options == {"model": "gpt2", "precision": "bf16", "seq_len": "128"}
    assert (read.batch_size, read.settings.knobs.precision, read.settings.knobs.seq_len) == (8, "bf16", 128)


def test_commands_and_the_settings_file_say_what_the_controls_say(tmp_path: Path):
    read = move(gpu="t4", model='odd "name" \x7f.py:x', adapter="lora:r=8,targets=all-linear")
    assert read.commands["check"].endswith("--batch-size 8")
    assert "tune" in read.commands
    path = tmp_path / "settings.toml"
    path.write_text(read.settings_file, encoding="utf-8")
    settings = resolve_settings({}, {}, path)
    assert settings.model == read.settings.model
    assert (settings.knobs, settings.gpu) == (read.settings.knobs, read.settings.gpu)


def test_without_a_card_the_command_is_estimate():
    assert move().commands == {
        "tune": "autofit tune --model gpt2",
        "estimate": "autofit estimate --model gpt2 --batch-size 8",
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"batch_size": 0}, "--batch-size: 0 is not a whole number of 1 or more"),
        ({"batch_size": "8.5"}, "--batch-size: '8.5' is not"),
        ({"batch_size": None}, "--batch-size: None is not"),
        ({"batch_size": "9" * 5000}, "--batch-size"),
        ({"batch_size": True}, "--batch-size: True is not"),
        ({"script": "train.py"}, "no control 'script'"),
        ({"allow_network": "true"}, "no control 'allow_network'"),
        ({"model": ["gpt2"]}, "model: a text is expected"),
        ({"model": "x" * 5000}, "model: 5000 characters are too many"),
        ({"number": -1}, "number: -1 is not"),
    ],
)
def test_a_value_that_is_none_is_a_sentence(values: dict[str, Any], said: str):
    with pytest.raises(UsageError) as refused:
        move(**values)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"[" * 5000, b'"text"'])
def test_a_body_that_is_no_move_is_a_sentence(body: bytes):
    with pytest.raises(UsageError, match="reload the page"):
        Move.from_json(body)


def test_hostile_documents_are_moves_or_usage_errors(tmp_path: Path):
    random = Random(53)
    valid = {"tab": "a", "number": 1, "model": "gpt2", "batch_size": 8, "precision": "bf16", "seq_len": 64}
    path, num_read = tmp_path / "settings.toml", 0
    for _ in range(500):
        body = hostile.json_text(hostile.document(dict(valid), random), random)
        try:
            read = Move.from_json(body)
            expected = read.settings
        except UsageError as error:
            assert len(error.message) < 6000
            continue
        num_read += 1
        path.write_text(read.settings_file, encoding="utf-8")
        assert resolve_settings({}, {}, path).knobs == expected.knobs
        assert read.commands["tune"].startswith("autofit tune --model")
    assert num_read > 0
