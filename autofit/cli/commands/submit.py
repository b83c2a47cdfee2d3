"""`autofit submit`: queues a search, or one for each of several cards, as jobs of a Ray cluster."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import urlsplit

import click

from autofit.answers.schemas.names import SUBMIT_SCHEMA
from autofit.cli.interruption import print_document
from autofit.cli.options.batch import BatchLine, as_usage_error, read_batch
from autofit.cli.options.jobs import ADDRESS, STORAGE, job_storage, require_address
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.search import CONFIG, SEARCH
from autofit.cli.options.shared import GPU_MEM, JSON, MODEL, complete_gpus, setting, without_secret
from autofit.errors import AutofitError, ExitCode, StorageDeniedError, UsageError
from autofit.hardware.gpus import catalogue
from autofit.jobs.records import DEFAULT_MAX_DRIVERS, WorkingDir
from autofit.jobs.submission import fleet_id, job_id, job_options, locate, make_spec, resolved_folder
from autofit.settings.options import Topic
from autofit.settings.resolve import chosen_cards, chosen_options, resolve_settings

if TYPE_CHECKING:
    from autofit.jobs.queue import JobQueue
    from autofit.jobs.records import JobRecord, JobSpec
    from autofit.jobs.submission import Code


_LEFT_TO_OTHERS = "the storage's user may not start jobs, so they wait for `autofit serve --address`"
# Options of `submit` that are no settings of the search.
_NO_SETTINGS = ("config", "working_dir", "max_drivers", "again")
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
@option(
    Topic.JOBS,
    "--batch",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    is_common=True,
    help="Submit many jobs: one a line, as `MODEL --gpu CARD …` or as a JSON object of these options. "
    "Options beside --batch hold for all lines; - reads standard input.",
)
@ADDRESS
@STORAGE
@JSON
def submit(
    *,
    batch: TextIO | None,
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

    Of a batch with a wrong line nothing is submitted.
    """
    common = {**given, "config": config, "working_dir": working_dir, "max_drivers": max_drivers}
    if batch is None:
        requests = [_Request.read(common, again=again)]
    else:
        requests = [_of_line(line) for line in read_batch(batch, {**common, "again": again})]
    url = job_storage(storage, default_is_reached=_is_this_machine(require_address(address)))
    from autofit.jobs.admission import admit
    from autofit.jobs.queue import JobQueue
    from autofit.jobs.ray_jobs import RayJobs

    ray_jobs = RayJobs(require_address(address))
    packages = _packages(requests)
    with JobQueue.open(url) as queue:
        queued = _enqueue(queue, requests, packages)
        try:
            admit(queue, ray_jobs)
        except StorageDeniedError:  # users who may only submit leave starting the jobs to `autofit serve`
            click.echo(f"note: {_LEFT_TO_OTHERS}", err=True)
        latest = queue.latest(each.job for each in queued)
        queued = [dataclasses.replace(each, job=job) for each, job in zip(queued, latest, strict=True)]
    if as_json:
        print_document(_document(queued, is_batch=batch is not None))
        return ExitCode.FOUND
    for name in dict.fromkeys(each.fleet or each.job.job_id for each in queued):
        click.echo(name)
    for each in queued:
        click.echo(_told(each.job, is_new=each.is_new), err=True)
    return ExitCode.FOUND


@dataclasses.dataclass(frozen=True, slots=True)
class _Queued:
    """A job that was asked for, as it is in the queue.

    Attributes:
        is_new: whether it was not there before.
        fleet: name of the fleet that was asked for with it; None for a single job.
        line: number of its line in a batch file; None outside one.
    """

    job: JobRecord
    is_new: bool
    fleet: str | None
    line: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """Jobs to be queued on a cluster: one for each GPU model in `--gpu`, or a single one without it.

    Attributes:
        specs: options and limits of each job.
        cards: keys of the GPU models; empty for a single job.
        code: the user's code that the jobs need.
        working_dir: folder or URI with files for the jobs; None if not given.
        again: whether to make new jobs even if the same were submitted before.
        line: number of its line in a batch file; None outside one.
    """

    specs: tuple[JobSpec, ...]
    cards: tuple[str, ...]
    code: Code
    working_dir: str | None
    again: bool
    line: int | None = None

    @classmethod
    def read(cls, chosen: Mapping[str, Any], *, again: bool) -> _Request:
        """Reads the jobs from a command's options; raises `UsageError` for options that jobs cannot have.

        Args:
            chosen: values of the command's options, by name.
            again: whether to make new jobs even if the same were submitted before.
        """
        given = {name: value for name, value in chosen.items() if name not in _NO_SETTINGS}
        config, working_dir = chosen["config"], chosen["working_dir"]
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
            specs.append(make_spec(settings, options, codes[-1], max_drivers=chosen["max_drivers"]))
        keys = tuple(spec.gpu for spec in specs if spec.gpu is not None)
        return cls(tuple(specs), keys if len(specs) > 1 else (), codes[0], working_dir, again)

    def jobs(self, queue: JobQueue, packed: WorkingDir | None) -> list[tuple[str, JobSpec]]:
        """Id and specification of each job.

        Args:
            packed: place of the jobs' code; None if the nodes have it.
        """
        specs = [dataclasses.replace(spec, working_dir=packed) for spec in self.specs]
        if self.cards:
            fleet = fleet_id(specs[0], self.code, self.cards)
            if self.again:  # job ids depend on the fleet's name, so a new name gives new jobs
                fleets = {job.spec.fleet for job in queue.records()}
                number, first = 2, fleet
                while fleet in fleets:
                    fleet, number = f"{first}-{number}", number + 1
            specs = [dataclasses.replace(spec, fleet=fleet) for spec in specs]
        return [(job_id(spec, self.code), spec) for spec in specs]


def _of_line(line: BatchLine) -> _Request:
    """Jobs of a batch file's line; raises `UsageError` with the line if it cannot be submitted."""
    try:
        request = _Request.read(line.options, again=line.options["again"])
    except AutofitError as error:
        raise as_usage_error(line, error) from error
    return dataclasses.replace(request, line=line.number)


def _packages(requests: Iterable[_Request]) -> dict[str, bytes]:
    """Packed code of each folder that the jobs bring, by its name in the requests."""
    folders = {each.working_dir for each in requests if each.working_dir is not None}
    packed: dict[str, bytes] = {}
    for name in sorted(name for name in folders if "://" not in name):
        from autofit.jobs.packages import pack
        from autofit.jobs.ray_jobs import working_dir_files

        folder = resolved_folder(name)
        packed[name] = pack(folder, working_dir_files(folder))
    return packed


def _enqueue(queue: JobQueue, requests: Sequence[_Request], packages: Mapping[str, bytes]) -> list[_Queued]:
    """Queues the jobs of all requests, in their order, and returns each job that was asked for."""
    places: dict[str | None, WorkingDir | None] = {None: None}
    for name in dict.fromkeys(each.working_dir for each in requests if each.working_dir is not None):
        if name in packages:
            from autofit.jobs.packages import store

            places[name] = store(queue.storage, packages[name])
        else:
            places[name] = WorkingDir(digest=None, where=name)
    asked: list[tuple[_Request, str, JobSpec]] = []
    queued: list[_Queued] = []

    def enqueue_asked() -> None:
        answers = queue.enqueue_all([(name, spec) for _, name, spec in asked])
        for (request, _, spec), (job, is_new) in zip(asked, answers, strict=True):
            queued.append(_Queued(job, is_new, spec.fleet, request.line))
        asked.clear()

    for request in requests:
        jobs = request.jobs(queue, places[request.working_dir])
        if request.again and not request.cards:
            enqueue_asked()  # what is before it in the queue
            ((name, spec),) = jobs
            job, is_new = queue.enqueue(name, spec, again=True)
            queued.append(_Queued(job, is_new, None, request.line))
        else:
            asked += [(request, name, spec) for name, spec in jobs]
            if request.again:
                enqueue_asked()  # the next fleet's name depends on it
    enqueue_asked()
    return queued


def _is_this_machine(address: str) -> bool:
    try:
        return address == "auto" or urlsplit(address).hostname in _LOOPBACK
    except ValueError:  # not an address; the error is raised where the address is used
        return False


def _document(queued: Sequence[_Queued], *, is_batch: bool) -> str:
    """JSON document on the queued jobs.

    Args:
        is_batch: whether they are those of a batch file, which have neither an id nor a fleet in common.
    """
    jobs = [
        {
            "job_id": each.job.job_id,
            "gpu": each.job.spec.gpu,
            "state": each.job.state,
            "is_new": each.is_new,
            **({"fleet": each.fleet, "line": each.line} if is_batch else {}),
        }
        for each in queued
    ]
    fleet = None if is_batch else queued[0].fleet
    single = None if is_batch or fleet is not None else queued[0].job.job_id
    return json.dumps({"schema": SUBMIT_SCHEMA, "job_id": single, "fleet": fleet, "jobs": jobs}, indent=2)


def _told(job: JobRecord, *, is_new: bool) -> str:
    if is_new:
        return f"{job.job_id} is {job.state}"
    advice = " `autofit result` shows it;" if job.packed_document is not None else ""
    return f"{job.job_id} was submitted before and is {job.state}:{advice} --again makes another"
