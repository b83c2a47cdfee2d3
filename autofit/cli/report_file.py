"""Writing the page that `--report` asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from autofit.paths import write_atomically
from autofit.report.html.content import Content


def write_report(path: Path, gather: Callable[[], Content]) -> None:
    """Gathers a report and writes its page; says on stderr where it is.

    Raises:
        StorageError: the file cannot be written.
    """
    from autofit.report.html.page import render

    write_atomically(path, render(gather()))
    click.echo(f"report written to {path}", err=True)
