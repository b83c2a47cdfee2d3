"""What the documentation says to type can be typed, and where it points to something is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from autofit.cli.app import autofit

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("deploy/**/*.md"),
        *ROOT.glob("tests/data/**/*.md"),
    ]
)

_FENCED = re.compile(r"^```.*?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
# A link to a file of tests, and one of them behind it.
_TEST = re.compile(r"\]\(([^)\s]*test_\w+\.py)\) `(\w+)`")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
# What stands between two commands of a line, and behind the last one.
_END = re.compile(r"&&|\||;|>|  #|   ")
# Variables may be set in front of a command.
_COMMAND = re.compile(r"(?:\$ +)?(?:\w+=\S* +)*(autofit +[a-z].*)")


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command of autofit, in blocks and in sentences."""
    blocks = [block.replace("\\\n", " ") for block in _FENCED.findall(text)]
    spans = [" ".join(span.split()) for span in _SPAN.findall(_FENCED.sub("", text))]
    for line in "\n".join([*blocks, *spans]).splitlines():
        for command in _END.split(line):
            if found := _COMMAND.fullmatch(command.strip()):
                yield _words(found[1])[1:]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an apostrophe of a sentence
        return command.split()


def unknown_in(words: list[str]) -> list[str]:
    """The command, or those of its options, that the command line does not have."""
    name, *arguments = words
    command = autofit.commands.get(name.rstrip(":,."))
    if command is None:
        return [name]
    options = {
        name: parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    unknown, words = [], iter(arguments)
    for word in words:
        name, _, value = word.partition("=")
        option = options.get(name)
        if option is not None and not option.is_flag and not value:
            next(words, None)  # its value, whatever that looks like
        elif name.startswith("--") and option is None and name != "--help":
            unknown.append(name)
    return unknown


def anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def is_there(page: Path, link: str) -> bool:
    path, _, fragment = link.partition("#")
    file = (page.parent / path) if path else page
    if not file.exists():
        return False
    headings = _HEADING.findall(file.read_text(encoding="utf-8")) if fragment else []
    return not fragment or fragment in {anchor(heading) for heading in headings}


def test_every_command_and_option_of_the_documentation_exists():
    found = [
        (str(page.relative_to(ROOT)), words) for page in PAGES for words in commands(page.read_text("utf-8"))
    ]
    assert len(found) > 20
    wrong = [f"{page}: autofit {' '.join(words)}" for page, words in found if unknown_in(words)]
    assert wrong == []


def test_every_link_of_the_documentation_leads_to_what_is_there():
    links = [(page, link) for page in PAGES for link in _LINK.findall(page.read_text("utf-8"))]
    ours = [(page, link) for page, link in links if not re.match(r"[a-z]+:", link)]
    assert ours
    wrong = [f"{page.relative_to(ROOT)}: {link}" for page, link in ours if not is_there(page, link)]
    assert wrong == []


def test_every_test_that_the_documentation_names_exists():
    named = [(page, path, test) for page in PAGES for path, test in _TEST.findall(page.read_text("utf-8"))]
    assert len(named) > 20
    wrong = [
        f"{page.relative_to(ROOT)}: {path} {test}"
        for page, path, test in named
        if f"def {test}(" not in (page.parent / path).read_text("utf-8")
    ]
    assert wrong == []


def test_what_is_misspelt_is_found():
    text = (
        "Type `autofit tune --modle davenet`, or:\n\n```sh\nA=1 autofit tuen --model x && autofit gpus\n```\n"
    )
    assert [unknown_in(words) for words in commands(text)] == [["tuen"], [], ["--modle"]]
    readme = ROOT / "README.md"
    assert is_there(readme, "CONTRIBUTING.md")
    assert is_there(readme, "#questions")
    assert not is_there(readme, "CONTRIBUTOR.md")
    assert not is_there(readme, "#what-it-says")
