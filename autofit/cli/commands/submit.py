"""`autofit submit`: queues a search, or one for each of several cards, as jobs of a Ray cluster."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from autofit.cli.interruption import print_document
from autofit.cli.options.jobs import ADDRESS, STORAGE, job_storage, require_address
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.search import CONFIG, SEARCH
from autofit.cli.options.shared import GPU_MEM, JSON, MODEL, complete_gpus, setting, without_secret
from autofit.errors import ExitCode, StorageDeniedError, UsageError
from autofit.hardware.gpus import catalogue
from autofit.jobs.records import DEFAULT_MAX_DRIVERS, WorkingDir
from autofit.jobs.submission import fleet_id, job_id, job_options, locate, make_spec, resolved_folder
from autofit.settings.options import Topic
from autofit.settings.resolve import chosen_cards, chosen_options, resolve_settings

if TYPE_CHECKING:
    from autofit.jobs.queue import JobQueue
    from autofit.jobs.records import JobRecord, JobSpec
    from autofit.jobs.submission import Code

SUBMIT_SCHEMA = "autofit.submit/1"

_LEFT_TO_OTHERS = "the storage's user may not start jobs, so they wait for `autofit serve --address`"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@click.command(cls=LongCommand)
@MODEL
@GPU_MEM
@setting(
    "gpu",
    help_text="The card, such as rtx-3090; several make a fleet: one job each, and one table.",
    metavar="CARD,…",
    complete=complete_gpus,
)
@SEARCH
@CONFIG
@option(
    Topic.JOBS,
    "--working-dir",
    metavar="DIR",
    callback=without_secret(None),
    is_common=True,
    help="Folder with the workload's code, copied to every node; or the URI of a zip file.",
)
@option(Topic.JOBS, "--again", is_flag=True, help="Make another job even if one of the same content exists.")
@option(
    Topic.JOBS,
    "--max-drivers",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_DRIVERS,
    show_default=True,
    metavar="NUM",
    help="Let the job wait while this many run; the cluster's resource autofit_driver limits them too.",
)
@ADDRESS
@STORAGE
@JSON
def submit(
    *,
    config: Path | None,
    working_dir: str | None,
    again: bool,
    max_drivers: int,
    address: str | None,
    storage: str | None,
    as_json: bool,
    **given: str | bool | None,
) -> ExitCode:
    """Queue a tune on a Ray cluster, and print the job's id.

    The answer is kept in the storage, which survives the cluster: `autofit wait JOB` waits for it,
    `autofit result JOB` prints it. Submitting the same content again gives the same job.
    """
    request = _Request.read(given, config, working_dir, max_drivers)
    url = job_storage(storage, default_is_reached=_is_this_machine(require_address(address)))
    from autofit.jobs.admission import admit
    from autofit.jobs.queue import JobQueue
    from autofit.jobs.ray_jobs import RayJobs

    ray_jobs = RayJobs(require_address(address))
    with JobQueue.open(url) as queue:
        fleet, queued = request.enqueue(queue, again=again)
        try:
            admit(queue, ray_jobs)
        except StorageDeniedError:  # users who may only submit leave starting the jobs to `autofit serve`
            click.echo(f"note: {_LEFT_TO_OTHERS}", err=True)
        jobs = [(queue.record(job.job_id) or job, is_new) for job, is_new in queued]
    if as_json:
        print_document(_document(fleet, jobs))
    else:
        click.echo(fleet or jobs[0][0].job_id)
        for job, is_new in jobs:
            click.echo(_told(job, is_new=is_new), err=True)
    return ExitCode.FOUND


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """Jobs to be queued on a cluster: one for each GPU model in `--gpu`, or a single one without it.

    Attributes:
        specs: options and limits of each job.
        cards: keys of the GPU models; empty for a single job.
        code: the user's code that the jobs need.
        working_dir: folder or URI with files for the jobs; None if not given.
    """

    specs: tuple[JobSpec, ...]
    cards: tuple[str, ...]
    code: Code
    working_dir: str | None

    @classmethod
    def read(
        cls, given: Mapping[str, Any], config: Path | None, working_dir: str | None, max_drivers: int
    ) -> _Request:
        """Reads the jobs from a command's options; raises `UsageError` for options that jobs cannot have."""
        cards = chosen_cards(given, os.environ, config) or (None,)
        if len(cards) > 1 and given["study"]:
            raise UsageError("--study names one study, but each card of a fleet has its own: leave it out")
        if len(cards) == len(catalogue()):
            raise UsageError(
                f"--gpu all would make a job for each of {len(cards)} cards: name those of the cluster, or "
                "let `autofit tune --gpu all` predict them"
            )
        specs, codes = [], []
        for card in cards:
            single = {**given, "gpu": card}
            settings = resolve_settings(single, os.environ, config)
            if settings.gpu is None and settings.gpu_mem_bytes is None:
                raise UsageError(
                    "a job does not use this machine's card: name one with --gpu, such as rtx-3090, or give "
                    "--gpu-mem, such as 16G"
                )
            if settings.lengths is not None:
                raise UsageError(
                    "--lengths reads a file of this machine, which a job may not have: find the batch here "
                    "with `autofit tune --lengths`, or give the job --seq-len"
                )
            codes.append(locate(settings, working_dir))
            options = job_options(chosen_options(single, os.environ, config))
            specs.append(make_spec(settings, options, codes[-1], max_drivers=max_drivers))
        keys = tuple(spec.gpu for spec in specs if spec.gpu is not None)
        return cls(tuple(specs), keys if len(specs) > 1 else (), codes[0], working_dir)

    def enqueue(self, queue: JobQueue, *, again: bool) -> tuple[str | None, list[tuple[JobRecord, bool]]]:
        """Queues the requested jobs; returns the name of their fleet, and the jobs.

        Args:
            again: whether to make new jobs even if the same were submitted before.

        Returns:
            Name of the fleet (the group of jobs), None for a single job; each job, with whether it is new.
        """
        packed = self._packed(queue)
        specs = [dataclasses.replace(spec, working_dir=packed) for spec in self.specs]
        if not self.cards:
            return None, [queue.enqueue(job_id(specs[0], self.code), specs[0], again=again)]
        fleet = fleet_id(specs[0], self.code, self.cards)
        if again:  # job ids depend on the fleet's name, so a new name gives new jobs
            fleets = {job.spec.fleet for job in queue.records()}
            number, first = 2, fleet
            while fleet in fleets:
                fleet, number = f"{first}-{number}", number + 1
        specs = [dataclasses.replace(spec, fleet=fleet) for spec in specs]
        return fleet, [queue.enqueue(job_id(spec, self.code), spec) for spec in specs]

    def _packed(self, queue: JobQueue) -> WorkingDir | None:
        if self.working_dir is None:
            return None
        if "://" in self.working_dir:
            return WorkingDir(digest=None, where=self.working_dir)
        from autofit.jobs import packages
        from autofit.jobs.ray_jobs import working_dir_files

        folder = resolved_folder(self.working_dir)
        return packages.store(queue.storage, packages.pack(folder, working_dir_files(folder)))


def _is_this_machine(address: str) -> bool:
    try:
        return address == "auto" or urlsplit(address).hostname in _LOOPBACK
    except ValueError:  # not an address; the error is raised where the address is used
        return False


def _document(fleet: str | None, jobs: list[tuple[JobRecord, bool]]) -> str:
    """JSON document on the queued jobs."""
    return json.dumps(
        {
            "schema": SUBMIT_SCHEMA,
            "job_id": None if fleet is not None else jobs[0][0].job_id,
            "fleet": fleet,
            "jobs": [
                {"job_id": job.job_id, "gpu": job.spec.gpu, "state": job.state, "is_new": is_new}
                for job, is_new in jobs
            ],
        },
        indent=2,
    )


def _told(job: JobRecord, *, is_new: bool) -> str:
    if is_new:
        return f"{job.job_id} is {job.state}"
    advice = " `autofit result` shows it;" if job.packed_document is not None else ""
    return f"{job.job_id} was submitted before and is {job.state}:{advice} --again makes another"
