"""Command-line options of a search: what to try, where to store the study, where to measure."""

from __future__ import annotations

from pathlib import Path

import click

from autofit.cli.options.pages import option
from autofit.cli.options.shared import settings_of
from autofit.settings.options import Topic

# Options of a search besides workload and card that a job takes along; its cluster decides the others.
SEARCH = settings_of(
    Topic.CARD,
    Topic.SETTINGS,
    Topic.SEARCH,
    Topic.TRIALS,
    but=("gpu", "gpu-mem"),
    where=lambda row: row.of_job,
)
PLACES = settings_of(Topic.TRIALS, where=lambda row: not row.of_job)
CONFIG = option(
    Topic.SEARCH,
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML with a table [tune] of these options; the command line and AUTOFIT_… variables win.",
)
