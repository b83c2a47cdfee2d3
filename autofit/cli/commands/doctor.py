"""`autofit doctor`: checks what autofit needs on this machine, with advice on failed checks."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

from autofit.answers.schemas.names import DOCTOR_SCHEMA
from autofit.cli.interruption import print_document
from autofit.cli.options.shared import JSON
from autofit.errors import ExitCode

if TYPE_CHECKING:
    from autofit.cli.backend import Backend

_MARKS = {"ok": "✓", "warning": "!", "failed": "✗"}
_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


@click.command()
@JSON
@click.pass_obj
def doctor(backend: Backend, as_json: bool) -> ExitCode:
    """Check what autofit needs on this machine.

    Exits with 5 when a check failed.
    """
    checks = backend.examine()
    if as_json:
        document = {"schema": DOCTOR_SCHEMA, "checks": [dataclasses.asdict(check) for check in checks]}
        print_document(json.dumps(document, indent=2))
    else:
        from autofit.cli.text.output import grid, stdout, styled

        table = grid("left", "left", "left")
        for check in checks:
            style = _STYLES[check.status]
            table.add_row(
                styled(f"{_MARKS[check.status]} {check.status}", style),
                styled(check.name, "bold"),
                check.detail,
            )
            if check.next_step:
                table.add_row("", "", styled(f"→ {check.next_step}", style))
        stdout().print(table)
    has_failed = any(check.status == "failed" for check in checks)
    return ExitCode.INFRASTRUCTURE if has_failed else ExitCode.FOUND
