"""Writes the generated parts of the site's pages: `python docs/generate.py`.

Options come from the command line itself, the fields of JSON documents from the classes that they are made
of, and `llms.txt` from the pages. A generated part stands between two comments, `<!-- generated: NAME -->`
and `<!-- end -->`, in a page that is kept with the rest, so that it reads on its own. `--check` writes
nothing, and exits with 1 where a part is not what the code says.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Container
from pathlib import Path

import click
import json_schemas

from autofit.answers.schemas.json_schema import published, schemas
from autofit.cli.app import autofit
from autofit.cli.options.pages import TopicOption
from autofit.settings.options import Topic
from autofit_workers.spec.releases import DIFFERENCES

PAGES = Path(__file__).parent / "pages"
_PART = re.compile(r"(?<=<!-- generated: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
_DEFAULT = re.compile(r"\s*\[default: (.*)\]$", re.DOTALL)
_ELSE = "Others"  # of options that stand under no heading of a command's help
_SHARED_BY = 3  # an option that as many commands take is described once
_EXIT_CODES = " [All exit codes](settings.md#exit-codes)."
_LLMS_BEGIN = Path(__file__).parent / "llms_begin.md"  # how a program or an assistant uses the command
# Pages that tell more of an option than its help does.
_MORE = {
    "--adapter": "language-model.md#adapters",
    "--allow-network": "side-effects.md",
    "--allow-subprocesses": "side-effects.md",
    "--allocator": "knobs.md",
    "--assume": "largest-batch.md#a-training-script-as-it-is",
    "--attention": "knobs.md#attention",
    "--base": "knobs.md",
    "--batch-layout": "language-model.md#padding-and-packing",
    "--batching": "after-an-hour.md#the-lengths-of-your-data",
    "--checkpointing": "knobs.md",
    "--conv-algo": "../../workers/autofit_workers/spec/conv_algorithms/README.md",
    "--gpus": "which-card.md",
    "--keep-env": "side-effects.md",
    "--launcher": "many-gpus.md#one-rank-of-a-script",
    "--lengths": "after-an-hour.md#the-lengths-of-your-data",
    "--loss": "language-model.md#the-logits",
    "--max-host-memory": "side-effects.md",
    "--maximize": "language-model.md#the-size-of-a-sample",
    "--new-tokens": "generate-and-serve.md",
    "--nnodes": "many-gpus.md",
    "--nproc": "many-gpus.md#one-rank-of-a-script",
    "--optimizer": "knobs.md#optimizers",
    "--parallel": "many-gpus.md#ways-to-train-on-several-gpus",
    "--peak": "how-sure.md#a-peak-that-a-real-run-had",
    "--precision": "knobs.md",
    "--price": "which-card.md",
    "--rank": "many-gpus.md",
    "--risk": "how-sure.md#risk",
    "--samples": "which-card.md#predicted-times",
    "--search": "knobs.md#searching-several-at-once",
    "--seq-len": "language-model.md#the-size-of-a-sample",
    "--storage": "cluster.md",
    "--task": "models.md",
    "--torch": "how-it-works.md#another-pytorch-than-the-installed-one",
    "--view": "where-memory-goes.md",
    "--what-if": "knobs.md#what-would-make-it-fit",
    "--write": "into-my-trainer.md",
}


def main() -> int:
    """Writes what has changed, or names it with `--check`."""
    checks = "--check" in sys.argv[1:]
    stale = []
    for file, text in generated().items():
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(file)
            if not checks:
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, encoding="utf-8")
    for file in stale:
        print(f"{file.relative_to(PAGES)}: {'run python docs/generate.py' if checks else 'written'}")
    return 1 if checks and stale else 0


def generated() -> dict[Path, str]:
    """Each page with a generated part, JSON Schema and list, with the text that it should have."""
    parts: dict[str, Callable[[], str]] = {
        "options": options,
        "json": json_schemas.tables,
        "releases": releases,
    }
    texts = {}
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if _PART.search(text):
            texts[page] = _PART.sub(lambda match: f"{match[1]}{match[2]}\n{parts[match[1]]()}\n", text)
    for name in schemas():
        text = json.dumps(published(name), indent=1, ensure_ascii=False)
        texts[PAGES / "schemas" / f"{name}.json"] = f"{text}\n"
    texts[PAGES / "llms.txt"] = llms()
    return texts


def releases() -> str:
    """Table of the differences between releases of PyTorch, the newest first."""
    lines = ["| since | before | since then | `--torch` follows it | source |", "|---|---|---|---|---|"]
    for each in DIFFERENCES:
        since = ".".join(map(str, each.since))
        lines.append(f"| {since} | {each.before} | {each.after} | {each.followed} | {each.source} |")
    return "\n".join(lines)


def options() -> str:
    """Tables of the options that several commands share, by topic, and a section for each command."""
    takers: dict[tuple[str, ...], list[str]] = {}
    topics: dict[str, list[tuple[str, ...]]] = {_heading(topic): [] for topic in Topic}
    for name, command in autofit.commands.items():
        for option in _options(command):
            row = _row(option)
            takers.setdefault(row, []).append(name)
            heading = _heading(option.topic) if isinstance(option, TopicOption) else _ELSE
            rows = topics.setdefault(heading, [])
            if len(takers[row]) == _SHARED_BY:
                rows.append(row)
    shared = {row for rows in topics.values() for row in rows}
    lines = ["## Options of several commands", ""]
    for heading, rows in topics.items():
        if not rows:
            continue
        lines += [f"### {heading}", "", "| option | means | default | taken by |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(row)} | {', '.join(takers[row])} |" for row in rows]
        lines += [""]
    for name, command in autofit.commands.items():
        lines += [f"## autofit {name}", "", *_described(command), *_taken(command, shared), ""]
    return "\n".join(lines)


def _taken(command: click.Command, shared: Container[tuple[str, ...]]) -> list[str]:
    """Table of a command's own options, and the names of the shared ones that it takes."""
    rows = [_row(option) for option in _options(command)]
    lines = []
    if own := [row for row in rows if row not in shared]:
        lines += ["| option | means | default |", "|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in own]
    if common := [row[0].split(" ")[0].strip("`,") for row in rows if row in shared]:
        also = f"{'Also' if own else 'Takes'}, from the [tables above](#options-of-several-commands): "
        lines += ["", also + ", ".join(f"`{each}`" for each in common) + "."]
    return lines


def _heading(topic: Topic) -> str:
    return f"{topic.group}: {topic.part}" if topic.part else topic.group


def _options(command: click.Command) -> list[click.Option]:
    """Options of a command but those that print help, as every command has."""
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    return [option for option in options if option.expose_value or isinstance(option, TopicOption)]


def _described(command: click.Command) -> list[str]:
    """Usage and help of a command, as Markdown; what is laid out by hand stays so."""
    taken = [each for each in command.params if isinstance(each, click.Argument)]
    arguments = [each.make_metavar(click.Context(command)) for each in taken]
    usage = f"`{' '.join(['autofit', str(command.name), '[OPTIONS]', *arguments])}`"
    lines = [usage, ""]
    for paragraph in (command.help or "").split("\n\n"):
        if "\b" in paragraph:
            lines += ["```text", *paragraph.replace("\b", "").strip("\n").splitlines(), "```", ""]
        else:
            said = _plain(paragraph)
            lines += [said + (_EXIT_CODES if said.startswith("Exit") else ""), ""]
    return lines


def _row(option: click.Option) -> tuple[str, ...]:
    """How an option is written, its meaning, and its default."""
    names = ", ".join(f"`{name}`" for name in sorted((*option.opts, *option.secondary_opts), key=len))
    if not option.secondary_opts and not option.is_flag:
        names += f" `{option.make_metavar(click.Context(click.Command('autofit')))}`"
    text = _plain(option.help or "")
    stated = _DEFAULT.search(text)
    text = _DEFAULT.sub("", text)
    if more := next((_MORE[name] for name in option.opts if name in _MORE), None):
        text += f" [More]({more})."
    return names.replace("|", "\\|"), text.replace("|", "\\|"), _default(option, stated)


def _default(option: click.Option, stated: re.Match[str] | None) -> str:
    if stated:
        return stated[1]
    if option.required:
        return "required"
    shown = option.show_default
    if isinstance(shown, str):
        return shown
    return str(option.default) if shown and not option.is_flag else ""


def _plain(text: str) -> str:
    """Text on one line, without what Markdown would read as a tag."""
    return " ".join(text.split()).replace("<", "&lt;").replace("*", "\\*")


def llms() -> str:
    """How to use the command, and a list of the pages, for programs: each with its first sentence."""
    lines = [*_LLMS_BEGIN.read_text(encoding="utf-8").splitlines(), "", "## Pages", ""]
    for page in sorted(PAGES.glob("*.md"), key=_place_in_nav):
        text = page.read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        first = text.split("\n\n")[1]
        lines.append(f"- [{title[1] if title else page.stem}]({page.name}): {_first_sentence(first)}")
    lines += ["", "## Schemas", ""]
    lines += [f"- [{name}](schemas/{name}.json)" for name in schemas()]
    return "\n".join(lines) + "\n"


def _place_in_nav(page: Path) -> int:
    return (PAGES.parent / "mkdocs.yml").read_text(encoding="utf-8").index(f": {page.name}\n")


def _first_sentence(paragraph: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.?])\s", text)[0]


if __name__ == "__main__":
    sys.exit(main())
