"""`autofit lock`: writes what configurations need into a file, against which later changes are checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.interruption import print_document
from autofit.cli.options.locks import CONFIGURATION, FILE, LARGEST_BATCH, NAME, NAMES, given_options
from autofit.cli.options.pages import LongCommand
from autofit.cli.options.shared import JSON, QUIET, WARM
from autofit.errors import UsageError

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.locks.configurations import Configuration


@click.command(cls=LongCommand)
@NAMES
@NAME
@CONFIGURATION
@LARGEST_BATCH
@FILE
@WARM
@QUIET
@JSON
@click.pass_obj
def lock(
    backend: Backend,
    /,
    *,
    names: tuple[str, ...],
    name: str | None,
    lock_file: Path,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Lock what configurations need, to see later what grew.

    Predicts the configurations NAME of [tool.autofit.lock] in pyproject.toml, all of them without a NAME, and
    writes their peaks and largest holders into memory.lock.toml: commit it, and `autofit check --lock` fails
    once a change makes a peak grow. With --name the options describe the configuration. The file is the same
    on every machine, for each release of PyTorch and card.
    """
    wanted = _wanted(names, name, lock_file, given_options(given))
    from autofit.cli.text.progress import progress
    from autofit.locks.locked import lock_configurations

    with progress(quiet=quiet) as emit:
        answer = lock_configurations(wanted, lock_file, lambda each: backend.lock(each, Path.cwd(), emit))
    if as_json:
        print_document(answer.to_json())
    else:
        from autofit.answers.locks.changes import locked_sections
        from autofit.cli.text.sections import print_sections

        print_sections(locked_sections(answer))


def _wanted(
    names: tuple[str, ...], name: str | None, lock_file: Path, options: dict[str, Any]
) -> tuple[Configuration, ...]:
    """Configurations to lock: the one that options describe, or those of pyproject.toml and of the lock."""
    from autofit.locks.configurations import chosen, configuration, read_configured
    from autofit.locks.lock_file import read_lock_if_any

    if options:
        if names:
            raise UsageError(f"{names[0]} is configured: leave out --{next(iter(options)).replace('_', '-')}")
        if name is None:
            raise UsageError("Missing option '--name': the configuration needs a name in the lock.")
        return (configuration(name, options),)
    if name is not None:
        raise UsageError(f"--name {name} needs a configuration: give --model and --batch-size too")
    known = read_configured(Path.cwd()).with_those_of(read_lock_if_any(lock_file))
    return chosen(known, names)
