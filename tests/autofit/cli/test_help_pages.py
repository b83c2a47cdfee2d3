"""Help of commands with many options: `--help` has the common ones, `--help-all` every one."""

from __future__ import annotations

import re

import click
import pytest

from autofit.cli.app import autofit, main
from autofit.cli.options.pages import LongCommand
from tests.autofit.cli.test_documented_options import options_of

LONG = sorted(name for name, command in autofit.commands.items() if isinstance(command, LongCommand))
GROUPS = ["What", "Where", "Which settings", "How to answer", "Help"]


def page(capsys: pytest.CaptureFixture[str], command: str, option: str) -> str:
    assert main([command, option]) == 0
    return capsys.readouterr().out


def listed(text: str) -> list[str]:
    """Options that a help page has rows of, in order."""
    rows = re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", row)]


def headings(text: str) -> list[str]:
    return [heading for heading in re.findall(r"^(\S.*):$", text, re.MULTILINE) if heading != "Usage"]


def test_the_commands_with_many_options_are_long() -> None:
    many = {name for name, command in autofit.commands.items() if len(options_of(command)) > 25}
    assert many == set(LONG)


@pytest.mark.parametrize("command", LONG)
def test_help_is_short_and_grouped_and_names_where_all_are(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    text = page(capsys, command, "--help")
    shown = listed(text)
    assert len(text.splitlines()) < 90
    assert 8 <= len(set(shown) - {"-h", "--help", "--help-all"}) <= 16
    assert headings(text) == GROUPS
    counted = re.search(rf"^(\d+) more options: autofit {command} --help-all$", text, re.MULTILINE)
    assert counted is not None
    every = [each for each in autofit.commands[command].params if isinstance(each, click.Option)]
    rows = re.findall(r"^  -", text, re.MULTILINE)
    assert int(counted[1]) + len(rows) == sum(not each.hidden for each in every) + 1  # --help itself


@pytest.mark.parametrize("command", LONG)
def test_help_all_has_every_option_once_below_the_groups(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    text = page(capsys, command, "--help-all")
    shown = listed(text)
    assert len(shown) == len(set(shown))
    assert set(shown) == options_of(autofit.commands[command]) | {"-h", "--help"}
    found = headings(text)
    assert len(found) == len(set(found)) > len(GROUPS)
    of_groups = [heading.partition(":")[0] for heading in found]
    assert of_groups == sorted(of_groups, key=GROUPS.index)
    assert "more options" not in text


def test_what_most_people_need_is_in_the_help_of_tune(capsys: pytest.CaptureFixture[str]) -> None:
    shown = listed(page(capsys, "tune", "--help"))
    assert shown[:4] == ["--model", "--script", "--gpu-mem", "--gpu"]
    assert {"--precision", "--search", "--risk", "--json", "--report"} < set(shown)
