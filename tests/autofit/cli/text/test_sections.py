"""Sections on a terminal: what gives way where a table is wider than the screen."""

from __future__ import annotations

import pytest

from autofit.answers.section import Section, left, right, table
from autofit.cli.text.sections import print_sections

NAMES = ("Qwen2RotaryEmbedding-1234", "model.layers.12.self_attn.rotary_emb")
NUMBERS = ("[8, 2048, 4096]", "16,777,216")


@pytest.mark.parametrize("numbers_last", [True, False])
def test_names_give_way_in_a_list_and_numbers_do_not(numbers_last, capsys, monkeypatch):
    for name, value in (("COLUMNS", "80"), ("TTY_COMPATIBLE", "1"), ("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)  # as a terminal that is too narrow
    names, numbers = (left("class"), left("module")), (right("shape"), right("parameters"))
    columns, cells = (
        ((*names, *numbers), (*NAMES, *NUMBERS)) if numbers_last else ((*numbers, *names), (*NUMBERS, *NAMES))
    )
    print_sections([Section(name="layers", title="", blocks=(table(columns, [cells], fit="listed"),))])
    shown = capsys.readouterr().out
    assert all(number in shown for number in NUMBERS)
    assert max(map(len, shown.splitlines())) <= 80
