"""The site's pages: each is a question with its command, and what is generated is what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from autofit.cli.app import autofit
from tests.docs.pages import PAGES, ROOT, Command, blocks, commands_of, missing_line

ALL = sorted(PAGES.glob("*.md"))
_LISTS = {"json-fields.md", "api.md"}  # to look things up in, behind a page with the question


def test_what_is_generated_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "page", [page for page in ALL if page.name != "index.md"], ids=lambda page: page.stem
)
def test_a_page_is_a_question_that_its_first_screen_answers_by_a_command(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title, _, rest = text.partition("\n\n")
    assert re.fullmatch(r"# .+\?", title)
    if page.name not in _LISTS:
        first_screen = "\n".join(rest.splitlines()[:32])
        assert any(language in ("sh", "bash", "console", "python") for language, _ in blocks(first_screen))


def test_every_command_is_one_that_the_command_line_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "configs" / "examples")  # where the files that they name are
    refused = [
        f"{command.page}: {command.text}: {why}"
        for page in ALL
        for command in commands_of(page)
        if (why := _refusal(command))
    ]
    assert refused == []


def _refusal(command: Command) -> str | None:
    """Complaint of click about a command's words; None if it takes them."""
    name, *arguments = command.words
    found = autofit.commands.get(name)
    if found is None:
        return "no such command"
    program = click.Context(autofit, info_name="autofit", **autofit.context_settings)
    try:
        found.make_context(name, arguments, parent=program).close()
    except click.exceptions.Exit:  # --help
        return None
    except Exception as error:  # noqa: BLE001 - whatever it is, the page is wrong
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        (["a", "b"], None),
        (["a", "c"], "c"),
        (["a", "…", "c"], None),
        (["…", "c", "a"], "a"),
        (["a", "…", "long l…", "…"], None),
        (["b"], "b"),
    ],
)
def test_lines_that_are_left_out_are_said_to_be(shown: list[str], missing: str | None) -> None:
    assert missing_line(shown, ["a", "b", "c", "long line"]) == missing


def test_every_page_is_in_the_list_for_programs() -> None:
    listed = set(re.findall(r"\(([\w-]+\.md)\)", (PAGES / "llms.txt").read_text(encoding="utf-8")))
    assert listed == {page.name for page in ALL}
