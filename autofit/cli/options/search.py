"""The options of a search: what to try, where it is kept, where it is measured."""

from __future__ import annotations

from pathlib import Path

import click

from autofit.cli.options.shared import CONV_ALGOS_OPTION, KEPT_FREE, KNOBS, SEARCH_KNOBS, combined, setting
from autofit.settings.goals import Objective, Risk
from autofit.settings.tune_settings import DEVICES, PROBES

SEARCH = combined(
    setting("device", "What to measure on; cpu counts the process's memory.", choices=DEVICES),
    setting(
        "probe",
        "auto measures where the device is here or at --address, and predicts elsewhere.",
        choices=PROBES,
    ),
    CONV_ALGOS_OPTION,
    KNOBS,
    SEARCH_KNOBS,
    setting("max-batch", "Do not look beyond this batch.  [default: 65536]", metavar="N"),
    KEPT_FREE,
    setting(
        "risk",
        "Which level of a prediction has to fit: the high end of its 95 % interval, its likely peak, or the "
        "largest workspace of every convolution.  [default: safe]",
        choices=tuple(Risk),
    ),
    setting(
        "objective",
        "The best is the largest batch, or the one that measured most samples a second.  [default: batch]",
        choices=tuple(Objective),
    ),
    setting(
        "soak-steps",
        "Steps for which the winner is run again in a fresh process; 0: not at all.  "
        "[default: 20 on CUDA, 5 on the CPU]",
        metavar="N",
    ),
    setting("max-trials", "End after so many measured trials, those of earlier runs included.", metavar="N"),
    setting("max-seconds", "End after so long; what is running then is given up.", metavar="SECONDS"),
    setting("deadline", "How long one trial may take.  [default: 600]", metavar="SECONDS"),
    setting("threads", "Intra-op threads of a CPU trial.", metavar="N"),
)


STUDY = combined(
    setting("study", "Name of the study to begin or take up.  [default: follows from the settings]",
            metavar="NAME"),
    click.option("--fresh/--no-fresh", default=None, help="Begin the study anew."),
)  # fmt: skip


TRIALS = combined(
    setting("resources", "Custom resources that every trial asks its node for.", metavar="NAME=NUM,…"),
    setting("node-wait", "How long to wait for a node that could run a trial; 0: not at all.  [default: 30]",
            metavar="SECONDS"),
)  # fmt: skip


STORAGE = setting(
    "storage",
    "An Optuna URL, or a file ending in .journal.  [default: in the state directory]",
    metavar="URL",
)


STORAGE_WAIT = setting(
    "storage-wait",
    "How long to wait for a database that went away; 0: not at all.  [default: 60]",
    metavar="SECONDS",
)


ADDRESS = combined(
    setting("address", "A Ray cluster to measure on.  [default: a local one]", metavar="ADDRESS"),
    setting("metrics-port", "Serve Prometheus metrics meanwhile; 0 for any free port.", metavar="PORT"),
    setting("metrics-host", "Where to serve them.  [default: 127.0.0.1]", metavar="HOST"),
)


CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML with a table [tune] of these options; the command line and AUTOFIT_… variables win.",
)
