"""`autofit jobs`, `status`, `logs`, `stop`, `result`, `wait`: states, logs and results of submitted jobs."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.interruption import print_document
from autofit.cli.options.jobs import (
    ADDRESS,
    STORAGE,
    chosen,
    complete_job,
    job_storage,
    only,
    open_queue,
    require_address,
)
from autofit.cli.options.shared import JSON, QUIET
from autofit.errors import AutofitError, DispatchError, ExitCode, InfrastructureError
from autofit.jobs.records import JobState
from autofit.jobs.signing import storage_key
from autofit.jobs.stored.database import listed_jobs

if TYPE_CHECKING:
    from autofit.jobs.ray_jobs import RayJobs
    from autofit.jobs.records import JobRecord
    from autofit.study.damage import Unreadable

_LOOK_SECONDS = 0.5
_ADMIT_SECONDS = 5.0
_NUM_NOTES = 20  # notes shown at most in a text

_NAME = click.argument("name", metavar="JOB", shell_complete=complete_job)
_NAMES = click.argument("names", metavar="JOB…", nargs=-1, required=True, shell_complete=complete_job)


class RecordedError(AutofitError):
    """Error that a job, an `autofit tune` on a cluster, ended with, as its storage has it."""

    def __init__(self, answer: dict[str, object]) -> None:
        super().__init__(str(answer["message"]))
        self.kind = str(answer["kind"])
        self.exit_code = ExitCode(int(str(answer["exit_code"])))


class NotOverError(InfrastructureError):
    """A job, an `autofit tune` on a cluster, has no result yet."""

    kind = "not-over"


@click.command()
@click.option(
    "--newest",
    type=click.IntRange(min=1),
    metavar="NUM",
    help="Only the last NUM jobs that were submitted, also oldest first.",
)
@STORAGE
@JSON
def jobs(newest: int | None, storage: str | None, as_json: bool) -> None:
    """List the jobs of the storage, oldest first."""
    url = job_storage(storage)
    found = listed_jobs(url, key=storage_key(), newest=newest)
    if found is not None:
        _print_jobs(found, as_json=as_json)
        return
    with open_queue(url) as queue:
        _print_jobs(queue.records(newest=newest), as_json=as_json, left_aside=queue.unreadable)


@click.command()
@_NAMES
@STORAGE
@JSON
def status(names: tuple[str, ...], storage: str | None, as_json: bool) -> None:
    """Show how far jobs, or the jobs of a fleet, are."""
    with open_queue(storage) as queue:
        found = chosen(queue, names)
    if as_json or len(found) > 1:
        _print_jobs(found, as_json=as_json)
        return
    from autofit.cli.text.jobs import print_job

    print_job(found[0])


@click.command()
@_NAME
@click.option("--follow", "-f", is_flag=True, help="Keep printing until the driver ends.")
@ADDRESS
@STORAGE
def logs(name: str, follow: bool, address: str | None, storage: str | None) -> None:
    """Print the output of a job's driver.

    The cluster keeps it as long as its head lives. The answer is kept longer: `autofit result JOB`.
    """
    with open_queue(storage) as queue:
        job = only(queue, name)
        if follow and not job.attempts:
            click.echo(f"{job.job_id} is {job.state}: waiting for its driver", err=True)
        while follow and not job.attempts and not job.state.is_over:
            time.sleep(_LOOK_SECONDS)
            job = only(queue, job.job_id)
    if not job.attempts:
        raise NotOverError(f"{_known(job)}: no driver was started for it, so there are no logs")
    submission_id = job.attempts[-1].submission_id
    try:
        ray_jobs = _connect(address)
        if follow and ray_jobs.driver(submission_id) is not None:
            for chunk in ray_jobs.follow(submission_id):
                click.echo(chunk, nl=False)
            return
        text = ray_jobs.logs(submission_id)
    except DispatchError as error:
        raise DispatchError(f"{error.message}. The storage says: {_known(job)}") from error
    if text is None:
        raise DispatchError(
            f"the cluster no longer knows driver {submission_id}: its logs were lost with the head that ran "
            f"it. The storage says: {_known(job)}"
        )
    click.echo(text, nl=False)


@click.command()
@_NAMES
@ADDRESS
@STORAGE
def stop(names: tuple[str, ...], address: str | None, storage: str | None) -> None:
    """Stop jobs, or all jobs of a fleet.

    Their studies keep the trials that are done.
    """
    from autofit.jobs.admission import admit
    from autofit.jobs.admission import stop as stop_job

    with open_queue(storage) as queue:
        had_driver = False
        for job in chosen(queue, names):
            if job.state.is_over:
                click.echo(f"{job.job_id} was over already: {job.state}")
                continue
            had_driver = had_driver or bool(job.attempts)
            try:
                stop_job(queue, job, lambda: _connect(address))
            except DispatchError as error:
                raise DispatchError(
                    f"{error.message}. {job.job_id} is marked to be stopped: no further driver will start"
                ) from error
            click.echo(f"{job.job_id} is {only(queue, job.job_id).state}")
        if had_driver:
            admit(queue, _connect(address))


@click.command()
@_NAME
@STORAGE
@JSON
def result(name: str, storage: str | None, as_json: bool) -> int:
    """Print a job's answer, or a fleet's table.

    It is read from the storage alone, so it is there even when the cluster is gone.

    Exits as the job's own tune did, and with 5 while there is no answer yet.
    """
    with open_queue(storage) as queue:
        found = chosen(queue, [name])
    if any(job.spec.fleet == name for job in found):
        _print_fleet(name, found, as_json=as_json)
        return _exit_code(found)
    (job,) = found
    answer = job.answer
    if answer is None:
        raise NotOverError(f"{_known(job)}: wait for it with `autofit wait {job.job_id}`")
    if job.result is None:
        raise RecordedError(answer)
    if as_json:
        print_document(json.dumps(answer, indent=2))
    else:
        _print_answer(job, answer)
    return _exit_code([job])


@click.command()
@_NAMES
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop waiting after this many seconds; the jobs go on.",
)
@ADDRESS
@STORAGE
@QUIET
@JSON
def wait(
    *,
    names: tuple[str, ...],
    timeout: float | None,
    address: str | None,
    storage: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Wait until jobs, or all jobs of a fleet, are over.

    With --address it also starts queued jobs meanwhile.

    Exits with the first exit code other than 0 of the jobs, in their order; with 5 when the time is up.
    """
    give_up = None if timeout is None else time.monotonic() + timeout
    with open_queue(storage) as queue, _progress(quiet=quiet) as show:
        found = chosen(queue, names)
        ray_jobs = _connect(address) if address else None
        admitted = 0.0
        while not all(job.state.is_over for job in found):
            if ray_jobs is not None and time.monotonic() - admitted >= _ADMIT_SECONDS:
                from autofit.jobs.admission import admit

                admit(queue, ray_jobs)
                admitted = time.monotonic()
            show(_counts(found))
            if give_up is not None and time.monotonic() > give_up:
                raise NotOverError(f"not over after {timeout:g} s: {_counts(found)}; the jobs go on")
            time.sleep(_LOOK_SECONDS)
            found = chosen(queue, names)
    if len(names) == 1 and any(job.spec.fleet == names[0] for job in found):
        _print_fleet(names[0], found, as_json=as_json)
    else:
        _print_jobs(found, as_json=as_json)
    return _exit_code(found)


def _connect(address: str | None) -> RayJobs:
    from autofit.jobs.ray_jobs import RayJobs

    return RayJobs(require_address(address))


@contextlib.contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Context manager with a function that shows a text in the place of the last one.

    On a terminal the text is replaced in place; elsewhere each new text is a line.

    Args:
        quiet: whether to show nothing.
    """
    if quiet:
        yield lambda _text: None
        return
    from autofit.cli.text.output import stderr

    console = stderr()
    if console.is_terminal:
        with console.status("") as line:
            yield line.update
        return
    shown: list[str] = []

    def show(text: str) -> None:
        if shown[-1:] != [text]:
            shown.append(text)
            console.print(text)

    yield show


def _print_answer(job: JobRecord, answer: dict[str, Any]) -> None:
    """Prints the answer of a job as text, as `autofit tune` printed it on the cluster.

    Args:
        answer: JSON document of the answer, parsed.
    """
    from autofit.answers.tune.sections import tune_sections
    from autofit.cli.text.sections import print_sections
    from autofit.settings.resolve import resolve_settings
    from autofit.tuning.result import TuneResult

    options = job.spec.options
    settings = resolve_settings({name.replace("-", "_"): text for name, text in options.items()}, {}, None)
    try:
        result = TuneResult.from_dict(answer)
        print_sections(tuple(tune_sections(result, settings, asked_memory=options.get("gpu-mem"))))
    except ValueError as error:
        raise InfrastructureError(
            f"{job.job_id} was answered by another version of autofit, whose answer cannot be printed here "
            f"({error}): add --json"
        ) from error


def _known(job: JobRecord) -> str:
    """Sentence on what is stored about a job: its state, the reason, and how to show its answer."""
    reason = f" ({job.state_reason})" if job.state_reason else ""
    has_answer = job.state.is_over and job.packed_document is not None
    shown = f"; `autofit result {job.job_id}` shows its answer" if has_answer else ""
    return f"{job.job_id} is {job.state}{reason}{shown}"


def _exit_code(found: Sequence[JobRecord]) -> int:
    codes = [ExitCode.INFRASTRUCTURE if job.exit_code is None else job.exit_code for job in found]
    return next((code for code in codes if code), ExitCode.FOUND)


def _counts(found: Sequence[JobRecord]) -> str:
    counts = Counter(job.state for job in found)
    return ", ".join(f"{counts[state]} {state}" for state in JobState if counts[state])


def _print_jobs(found: Sequence[JobRecord], *, as_json: bool, left_aside: Sequence[Unreadable] = ()) -> None:
    from autofit.cli.text.jobs import jobs_document, print_jobs

    notes = [str(left) for left in left_aside]
    if as_json:
        print_document(jobs_document(found, notes))
    else:
        print_jobs(found)
    for note in notes[:_NUM_NOTES]:
        click.echo(f"note: {note}", err=True)
    if len(notes) > _NUM_NOTES:
        click.echo(f"note: {len(notes) - _NUM_NOTES} others are not shown either: add --json", err=True)


def _print_fleet(fleet: str, found: Sequence[JobRecord], *, as_json: bool) -> None:
    from autofit.cli.text.jobs import fleet_document, print_fleet

    if as_json:
        print_document(fleet_document(fleet, found))
    else:
        print_fleet(found)
