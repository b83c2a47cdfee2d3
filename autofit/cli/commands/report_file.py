"""Writes the HTML page that `--report` asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autofit.errors import AutofitError
from autofit.paths import require_writable, write_atomically
from autofit.report.html.plotly_js import require_plotly_js

if TYPE_CHECKING:
    from autofit.errors import ExitCode
    from autofit.report.html.page import Page


def require_report(path: Path) -> None:
    """Checks that an HTML report can be written at a path; called before long work whose result it shows.

    Raises:
        StorageError: the file cannot be written.
        MissingLibraryError: plotly.js, which draws the figures, is not installed.
    """
    require_writable(path)
    require_plotly_js()


def write_report(path: Path, gather: Callable[[], Page]) -> ExitCode | None:
    """Writes an HTML report after the answer was printed, and prints its path on stderr.

    Args:
        gather: makes the report.

    Returns:
        None if the report was written; else the exit code of the error, which is printed on stderr.
    """
    from autofit.report.html.page import render

    try:
        write_atomically(path, render(gather()))
    except AutofitError as error:
        click.echo(f"error: the report was not written: {error.message}", err=True)
        return error.exit_code
    click.echo(f"report written to {path}", err=True)
    return None
