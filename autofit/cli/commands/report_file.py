"""Writes the HTML page that `--report` asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from autofit.errors import AutofitError, ExitCode
from autofit.paths import write_atomically
from autofit.report.html.page import Page


def write_report(path: Path, gather: Callable[[], Page]) -> ExitCode | None:
    """Writes a report's HTML page after the answer was printed, and prints the page's path on stderr.

    Returns:
        None; if the page cannot be written, the exit code, with the error on stderr.
    """
    from autofit.report.html.page import render

    try:
        write_atomically(path, render(gather()))
    except AutofitError as error:
        click.echo(f"error: the report was not written: {error.message}", err=True)
        return error.exit_code
    click.echo(f"report written to {path}", err=True)
    return None
