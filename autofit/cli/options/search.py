"""Command-line options of a search: what to try, where to store the study, where to measure."""

from __future__ import annotations

from pathlib import Path

import click

from autofit.cli.options.pages import option
from autofit.cli.options.shared import (
    CONV_ALGOS_OPTION,
    KEPT_FREE,
    KNOBS,
    SEARCH_KNOBS,
    combined,
    setting,
    settings,
)
from autofit.settings.options import Topic

SEARCH = combined(
    settings("device", "probe"),
    CONV_ALGOS_OPTION,
    KNOBS,
    SEARCH_KNOBS,
    settings("maximize", "batch-size", "lengths", "batching", "max-batch"),
    KEPT_FREE,
    settings(
        "risk", "objective", "samples", "soak-steps", "max-trials", "max-seconds", "deadline", "threads"
    ),
)
STUDY = settings("study", "fresh")
TRIALS = settings("resources", "node-wait")
STORAGE = setting("storage")
STORAGE_WAIT = setting("storage-wait")
ADDRESS = settings("dispatch", "address", "metrics-port", "metrics-host")
CONFIG = option(
    Topic.SEARCH,
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML with a table [tune] of these options; the command line and AUTOFIT_… variables win.",
)
