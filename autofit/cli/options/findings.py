"""Writes the files that `autofit check --lock --findings` asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from autofit.cli.options.pages import option
from autofit.cli.options.shared import format_and_file
from autofit.errors import UsageError, did_you_mean
from autofit.settings.options import Topic

if TYPE_CHECKING:
    from autofit.locks.checking import LockCheck

_FORMATS = ("markdown", "sarif", "code-quality")


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions of `--findings FORMAT=FILE`: formats, then files."""
    return format_and_file(dict.fromkeys(_FORMATS, ""), incomplete)


FINDINGS_OPTION: Callable[..., Any] = option(
    Topic.OUTPUT,
    "--findings",
    multiple=True,
    metavar="FORMAT=FILE",
    shell_complete=_complete,
    help=f"With --lock, also write what grew for reviews: {', '.join(_FORMATS)} (GitLab's). Repeatable.",
)


def findings_files(texts: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """Formats and files of `--findings`, after a check that each can be written; called before long work.

    Raises:
        UsageError: a text is not FORMAT=FILE, or there is no such format.
        StorageError: a file cannot be written.
    """
    files = []
    for text in texts:
        name, has_file, file = text.partition("=")
        if name not in _FORMATS or not has_file or not file:
            raise UsageError(
                f"--findings {text} is not FORMAT=FILE.{did_you_mean(name, _FORMATS)} The formats are "
                f"{', '.join(_FORMATS)}, as in --findings sarif=autofit.sarif"
            )
        files.append((name, Path(file)))
    if files:
        from autofit.paths import require_writable

        for _, path in files:
            require_writable(path)
    return tuple(files)


def write_findings(files: Sequence[tuple[str, Path]], check: LockCheck) -> None:
    """Writes a check into files, each atomically.

    Raises:
        StorageError: a file cannot be written.
    """
    if not files:
        return
    from autofit.answers.locks.findings import FINDINGS
    from autofit.paths import write_atomically

    for name, path in files:
        write_atomically(path, FINDINGS[name](check, Path.cwd()))
