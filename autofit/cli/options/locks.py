"""Options of commands on locks: files, names of configurations, and the options that describe one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from autofit.cli.options.pages import option
from autofit.cli.options.shared import (
    BATCH_SIZE_OR_OWN,
    CONV_ALGO,
    GPUS,
    MODEL_OPTION,
    SCRIPT,
    combined,
    settings_of,
)
from autofit.errors import AutofitError
from autofit.locks.lock_file import LOCK_NAME
from autofit.settings.options import Topic


def complete_name(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions of a configuration: names in pyproject.toml, and in the lock of this folder."""
    from autofit.locks.configurations import read_configured
    from autofit.locks.lock_file import read_lock_if_any

    try:
        names = [
            *read_configured(Path.cwd()).configurations,
            *read_lock_if_any(Path(LOCK_NAME)).configurations,
        ]
    except AutofitError:  # a file that is wrong completes nothing; the command says what is wrong
        return []
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


NAMES = click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_name)
FILE = option(
    Topic.OUTPUT,
    "--file",
    "lock_file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=LOCK_NAME,
    show_default=True,
    metavar="FILE",
    is_common=True,
    help="The lock, which belongs under version control.",
)
NAME = option(
    Topic.OUTPUT,
    "--name",
    metavar="NAME",
    is_common=True,
    help="Name of the configuration that the options describe, instead of one of pyproject.toml.",
)
LARGEST_BATCH = option(
    Topic.SEARCH,
    "--largest-batch",
    is_flag=True,
    help="Lock the largest batch that fits each card too.",
)
# Options of `autofit estimate` that describe a configuration.
CONFIGURATION = combined(
    MODEL_OPTION,
    SCRIPT,
    BATCH_SIZE_OR_OWN,
    GPUS,
    CONV_ALGO,
    settings_of(Topic.SETTINGS, but=("conv-algo",), where=lambda row: not row.of_search),
)


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options that were given, of those that `CONFIGURATION` adds."""
    return {name: value for name, value in options.items() if value not in (None, False, ())}
