"""Settings of where a study is stored, and where and how its trials run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autofit.dispatch.requests import DISPATCHES, RAY
from autofit.settings import values
from autofit.settings.options.option import Option, Topic
from autofit_workers.spec.knobs.knob import switch, whole_number

_of_trials = partial(Option, topic=Topic.TRIALS, of_search=True)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PlaceSettings:
    """Settings of where a study (the stored search) lies, and where and how configurations are run.

    All are options of `autofit tune`; commands that predict one configuration have `--fresh` too.
    """

    storage: str | None = _of_trials(
        values.text,
        "Where the study is kept: an Optuna URL, or a file ending in .journal.",
        default="in the state directory",
        metavar="URL",
        of_job=False,
        decides=False,
    ).with_default(None)
    storage_wait_seconds: float = _of_trials(
        values.seconds_or_zero,
        "How long to wait for a database that went away; 0 for not at all.",
        name="storage-wait",
        metavar="SECONDS",
        decides=False,
    ).with_default(60.0)
    study: str | None = _of_trials(
        values.text,
        "Name of the study to begin or resume.",
        default="follows from the settings",
        metavar="NAME",
    ).with_default(None)
    dispatch: str = _of_trials(
        values.one_of(DISPATCHES),
        "What runs measured trials: Ray, or inline, this machine one after another without Ray.",
        default="ray; inline, with a note, where Ray cannot start",
        choices=DISPATCHES,
        of_job=False,
        decides=False,  # a trial runs in a fresh process either way
    ).with_default(RAY)
    address: str | None = _of_trials(
        values.text,
        "A Ray cluster to measure on.",
        default="a local one",
        metavar="ADDRESS",
        of_cluster=True,
        of_job=False,
        decides=False,  # the answer depends on the devices at the address, not on the address
    ).with_default(None)
    resources: tuple[tuple[str, float], ...] = _of_trials(
        values.resources,
        "Custom Ray resources that every trial asks its node for.",
        metavar="NAME=NUM,…",
        of_cluster=True,
    ).with_default(())
    node_wait_seconds: float = _of_trials(
        values.seconds_or_zero,
        "How long to wait for a node that could run a trial; 0 for not at all.",
        name="node-wait",
        metavar="SECONDS",
        of_cluster=True,
        decides=False,
    ).with_default(30.0)
    fresh: bool = _of_trials(
        switch,
        "Ignore earlier answers, and begin the study anew.",
        is_switch=True,
        decides=False,
        of_search=False,  # other commands ignore kept traces by it
    ).with_default(False)
    metrics_port: int | None = _of_trials(
        whole_number(minimum=0, maximum=65535),
        "Serve Prometheus metrics on this port while it runs; 0 for any free port.",
        metavar="PORT",
        of_job=False,
        decides=False,
    ).with_default(None)
    metrics_host: str = _of_trials(
        values.text, "Address to serve metrics on.", metavar="HOST", of_job=False, decides=False
    ).with_default("127.0.0.1")
    deadline_seconds: float = _of_trials(
        values.seconds, "How long one trial may take.", name="deadline", metavar="SECONDS", decides=False
    ).with_default(600.0)
    num_threads: int | None = _of_trials(
        whole_number(minimum=1),
        "Intra-op threads of a trial on the CPU.",
        name="threads",
        default="one per core",
        metavar="N",
    ).with_default(None)
