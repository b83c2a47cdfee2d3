"""Options of the commands about jobs, and look-ups of the storage, cluster and jobs in these options."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from autofit.cli.options.pages import option
from autofit.cli.options.shared import setting, without_secret
from autofit.errors import AutofitError, StorageError, UsageError
from autofit.jobs.records import JobRecord, unknown_job
from autofit.jobs.submission import ADDRESS_VARIABLES, STORAGE_VARIABLE
from autofit.settings.options import Topic

if TYPE_CHECKING:
    from autofit.jobs.queue import JobQueue

STORAGE = setting(
    "storage",
    help_text="Where jobs are kept: an Optuna URL or a file ending in .journal that the cluster can reach.  "
    f"[default: {STORAGE_VARIABLE}, else in the state directory]",
)

ADDRESS = option(
    Topic.JOBS,
    "--address",
    envvar=ADDRESS_VARIABLES,
    metavar="URL",
    callback=without_secret(ADDRESS_VARIABLES[0]),
    help="The dashboard of the Ray cluster's head, such as http://head:8265.  "
    f"[default: {' or '.join(ADDRESS_VARIABLES)}]",
)


def open_queue(storage: str | None) -> JobQueue:
    """Opens the queue of the jobs in the storage that `--storage` or the environment names."""
    from autofit.jobs.queue import JobQueue  # takes a second, which other commands save

    return JobQueue.open(job_storage(storage))


def job_storage(given: str | None, *, default_is_reached: bool = True) -> str | None:
    """URL of the jobs' storage; None for the default storage.

    Args:
        given: the storage that the command line names.
        default_is_reached: whether the cluster can reach the default storage in the state directory.

    Raises:
        UsageError: no storage is named where one is needed.
    """
    storage = given or os.environ.get(STORAGE_VARIABLE) or None
    if storage is None and not default_is_reached:
        raise UsageError(
            "a cluster needs a storage that it reaches too: give --storage URL, or set "
            f"{STORAGE_VARIABLE} here and on the cluster"
        )
    return storage


def require_address(address: str | None) -> str:
    """Address of the Ray cluster, unchanged; raises `UsageError` if empty or None.

    Raises:
        UsageError: no address was given.
    """
    if not address:
        raise UsageError(
            "which cluster? Give its dashboard with --address http://head:8265, or set "
            f"{ADDRESS_VARIABLES[0]}"
        )
    return address


def chosen(queue: JobQueue, names: Iterable[str]) -> list[JobRecord]:
    """Jobs with the given names, and the jobs of fleets with these names, each once.

    Raises:
        UsageError: the storage has no job or fleet of a name; near matches are named.
        StorageError: a job of that name cannot be read.
    """
    records = queue.records()
    left_aside = {left.name: left for left in queue.unreadable}
    found: dict[str, JobRecord] = {}
    for name in names:
        meant = [job for job in records if name in (job.job_id, job.spec.fleet)]
        if not meant and f"job {name}" in left_aside:
            raise StorageError(f"{left_aside[f'job {name}']}: submit it with --again to make another")
        if not meant:
            raise UsageError(unknown_job(name, records))
        found.update({job.job_id: job for job in meant})
    return list(found.values())


def only(queue: JobQueue, name: str) -> JobRecord:
    """Job with a name; raises `UsageError` where the name is a fleet of several jobs."""
    jobs = chosen(queue, [name])
    if len(jobs) > 1:
        raise UsageError(f"{name} is a fleet: name one of its jobs, {', '.join(job.job_id for job in jobs)}")
    return jobs[0]


def complete_job(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions with the storage's jobs and fleets, newest first; empty if it cannot be read."""
    try:
        with open_queue(ctx.params.get("storage")) as queue:
            records = list(reversed(queue.records()))
    except AutofitError:
        return []
    names = [name for job in records for name in (job.job_id, job.spec.fleet) if name is not None]
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
