"""Options of the commands about jobs, and look-ups of the storage, cluster and jobs in these options."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from autofit.cli.options.pages import option
from autofit.cli.options.shared import setting, without_secret
from autofit.errors import AutofitError, UsageError
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
    """Opens the queue of jobs in a storage.

    Args:
        storage: value of `--storage`; if None, the environment names the storage, or it is the default.
    """
    from autofit.jobs.queue import JobQueue  # takes a second, which other commands save

    return JobQueue.open(job_storage(storage))


def job_storage(given: str | None, *, default_is_reached: bool = True) -> str | None:
    """URL of the storage that has the jobs; None for the default one in the state directory.

    Args:
        given: value of `--storage`; if None, the environment names the storage.
        default_is_reached: whether the cluster can reach the default storage.

    Raises:
        UsageError: no storage is named, and the cluster cannot reach the default one.
    """
    storage = given or os.environ.get(STORAGE_VARIABLE) or None
    if storage is None and not default_is_reached:
        raise UsageError(
            "a cluster needs a storage that it reaches too: give --storage URL, or set "
            f"{STORAGE_VARIABLE} here and on the cluster"
        )
    return storage


def require_address(address: str | None) -> str:
    """Returns the address of the Ray cluster; raises `UsageError` if it is missing.

    Raises:
        UsageError: the address is None or empty.
    """
    if not address:
        raise UsageError(
            "which cluster? Give its dashboard with --address http://head:8265, or set "
            f"{ADDRESS_VARIABLES[0]}"
        )
    return address


def chosen(queue: JobQueue, names: Iterable[str]) -> list[JobRecord]:
    """Jobs with the given names, each once; a name is that of a job or of a fleet (a group of jobs).

    Raises:
        UsageError: the storage has no job or fleet of a name; the message suggests similar names.
        StorageError: the record of a named job cannot be read.
    """
    found: dict[str, JobRecord] = {}
    records: list[JobRecord] | None = None
    for name in names:
        job = queue.record(name)
        if job is not None:
            found[job.job_id] = job
            continue
        records = queue.records() if records is None else records
        meant = [job for job in records if name == job.spec.fleet]
        if not meant:
            raise UsageError(unknown_job(name, records))
        found.update({job.job_id: job for job in meant})
    return list(found.values())


def only(queue: JobQueue, name: str) -> JobRecord:
    """Single job with the given name; raises `UsageError` if there is none, or a fleet of several.

    Raises:
        UsageError: there is no such job, or the name is that of a fleet of several jobs.
        StorageError: the record of the job cannot be read.
    """
    jobs = chosen(queue, [name])
    if len(jobs) > 1:
        raise UsageError(f"{name} is a fleet: name one of its jobs, {', '.join(job.job_id for job in jobs)}")
    return jobs[0]


def complete_job(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions with the names of jobs and fleets, newest first; empty if the storage fails."""
    try:
        with open_queue(ctx.params.get("storage")) as queue:
            records = list(reversed(queue.records()))
    except AutofitError:
        return []
    names = [name for job in records for name in (job.job_id, job.spec.fleet) if name is not None]
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
