"""Writes the HTML page that `--report` asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from autofit.errors import AutofitError, ExitCode
from autofit.paths import write_atomically
from autofit.report.html.page import Page


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
