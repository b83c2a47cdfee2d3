"""The site's pages: all options, schemas and exit codes of the commands, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from autofit.cli.app import autofit
from autofit.errors import ExitCode

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "pages"
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
# What a script is given is its own: `--script-arg --epochs=1`, `--batch-arg --batch-size`.
_OF_SCRIPTS = re.compile(r"(--script-arg|--batch-arg) --[a-z][\w=-]*")
# Options of pip and uv, by which pages say how autofit is installed.
_OF_INSTALLERS = {"--index-url", "--from", "--torch-backend"}
_OF_OTHER_PROGRAMS = {
    "--from-file",
    "--memory-update",
    "--pdb",
}  # kubectl; pytest, with this package's plugin
_OF_SCHEDULERS = {"--gres", "--constraint", "--gpu-memory-request"}
_OF_ALL = {"-h", "--help", "--help-all", "--version"}


def options_of(command: click.Command) -> set[str]:
    """What can be typed, hidden options left out."""
    shown = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    return {name for option in shown for name in (*option.opts, *option.secondary_opts)}


def anchor_of(heading: str) -> str:
    """The link to a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def sections(text: str) -> dict[str, str]:
    """The text below each heading, up to the next one, by the heading's link."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    _, *parts = re.split(r"^#+ (.+)$", prose, flags=re.MULTILINE)
    headings, bodies = parts[::2], parts[1::2]
    return dict(zip(map(anchor_of, headings), bodies, strict=True))


def in_rows(section: str) -> Iterator[str]:
    """The options that the rows of a section's tables are about."""
    for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE):
        yield from _OPTION.findall(row)


def documented(command: str) -> set[str]:
    """The options of a command's section, with those of the tables of shared ones that it names."""
    page = (PAGES / "options.md").read_text(encoding="utf-8")
    parts = sections(page)
    own = parts[f"autofit-{command}"]
    named = re.search(r"^(?:Also|Takes), from the \[tables above\].*$", own, re.MULTILINE)
    shared = set(_OPTION.findall(named[0].partition(": ")[2])) if named else set()
    rows = [
        set(_OPTION.findall(row))
        for row in re.findall(r"^\| (.*?) \|", page.partition("\n## autofit ")[0], re.MULTILINE)
    ]
    assert all(any(name in row for row in rows) for name in shared)
    return set(in_rows(own)).union(*(row for row in rows if row & shared))


@pytest.mark.parametrize("command", autofit.commands)
def test_the_options_page_has_every_option_of_a_command_and_no_other(command: str) -> None:
    assert documented(command) == options_of(autofit.commands[command]) - _OF_ALL


def test_the_pages_name_no_option_that_does_not_exist() -> None:
    text = _OF_SCRIPTS.sub(r"\1", "\n".join(page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")))
    named = {name for name in _OPTION.findall(text) if name.startswith("--")}
    own = _OF_ALL.union(*map(options_of, autofit.commands.values()))
    assert named <= own | _OF_INSTALLERS | _OF_SCHEDULERS | _OF_OTHER_PROGRAMS


def test_the_json_page_describes_every_schema_that_is_printed_or_written() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "autofit").rglob("*.py"))
    schemas = set(re.findall(r'_SCHEMA = "(autofit\.[\w-]+/\d+)"', source))
    described = set(re.findall(r"`(autofit\.[\w-]+/\d+)`", (PAGES / "json.md").read_text(encoding="utf-8")))
    assert schemas
    assert described == schemas


def test_the_pages_and_the_readme_have_every_exit_code() -> None:
    of_settings = sections((PAGES / "settings.md").read_text(encoding="utf-8"))["exit-codes"]
    assert re.findall(r"^\| (\d+) \|", of_settings, re.MULTILINE) == [str(int(code)) for code in ExitCode]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (codes,) = re.findall(r"^\| exit code \| (.+) \|$", readme, re.MULTILINE)
    assert codes.split(" | ") == [str(int(code)) for code in ExitCode]
