"""JSON documents and tables about jobs, and the text about a single one."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from autofit.answers.schemas.names import FLEET_SCHEMA, JOBS_SCHEMA
from autofit.cli.text.output import Justify, grid, headed, listing, print_rows, styled
from autofit.jobs.records import JobRecord, JobState
from autofit_workers.spec.shown import brief

_STYLES = {
    JobState.RUNNING: "cyan",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.STOPPED: "yellow",
}


# ── documents ───────────────────────────────────────────────────────────────────────────────────


def jobs_document(jobs: Iterable[JobRecord], notes: Sequence[str] = ()) -> str:
    """JSON document on jobs (`autofit tune` on a cluster): states, times and options, without full results.

    Args:
        notes: a sentence for each stored record that cannot be read.
    """
    return json.dumps(
        {"schema": JOBS_SCHEMA, "jobs": [_job(job) for job in jobs], "notes": list(notes)}, indent=2
    )


def fleet_document(fleet: str, jobs: Iterable[JobRecord]) -> str:
    """JSON document on a fleet (a job for each of several GPU models): state, best batch and full result.

    A result is null while the job has none.

    Args:
        fleet: name of the fleet.
    """
    cards = [
        {
            "gpu": job.spec.gpu,
            "job_id": job.job_id,
            "state": job.state,
            **_best(job),
            "result": job.answer,
        }
        for job in jobs
    ]
    return json.dumps({"schema": FLEET_SCHEMA, "fleet": fleet, "cards": cards}, indent=2)


def _job(job: JobRecord) -> dict[str, Any]:
    """JSON fields of a job, without its full result."""
    return {
        "job_id": job.job_id,
        "state": job.state,
        "workload": job.spec.workload,
        "gpu": job.spec.gpu,
        "fleet": job.spec.fleet,
        **_best(job),
        "exit_code": job.exit_code,
        "state_reason": job.state_reason,
        "study": job.study,
        "submitted_seconds": job.submitted_seconds,
        "started_seconds": job.started_seconds,
        "ended_seconds": job.ended_seconds,
        "attempts": [
            {"submission_id": attempt.submission_id, "started_seconds": attempt.started_seconds}
            for attempt in job.attempts
        ],
        "options": dict(job.spec.options),
    }


def _best(job: JobRecord) -> dict[str, Any]:
    """JSON fields with the best and the recommended batch and convolution algorithm of a job.

    All are None while the job has no answer, or if nothing fits.
    """
    best = None if job.result is None else job.result.best
    recommended = best if job.result is None else job.result.recommended or best
    return {
        "best_batch": None if best is None else best.batch_size,
        "conv_algo": None if best is None else best.knobs.conv_algo,
        "evidence": None if best is None else best.evidence,
        "recommended_batch": None if recommended is None else recommended.batch_size,
        "recommended_conv_algo": None if recommended is None else recommended.knobs.conv_algo,
    }


# ── tables ──────────────────────────────────────────────────────────────────────────────────────


def print_jobs(jobs: Sequence[JobRecord]) -> None:
    """Prints a table with a line for each job."""
    console = listing()
    if not jobs:
        console.print("no jobs")
        return
    columns: tuple[tuple[str, Justify], ...] = (
        ("job", "left"), ("state", "left"), ("batch", "right"), ("algorithm", "left"), ("evidence", "left"),
        ("submitted", "left"), ("took", "right"), ("", "left"),
    )  # fmt: skip
    rows = [
        (
            job.job_id,
            _state(job),
            *_best_words(job),
            _ago(job.submitted_seconds),
            _took(job),
            styled(_remark(job), "dim"),
        )
        for job in jobs
    ]
    print_rows(console, columns, rows)


def print_fleet(jobs: Sequence[JobRecord]) -> None:
    """Prints a table of a fleet (a job for each of several GPU models), with a line for each job."""
    table = headed(
        ("card", "left"), ("batch", "right"), ("algorithm", "left"), ("evidence", "left"),
        ("state", "left"), ("job", "left"), ("", "left"),
    )  # fmt: skip
    for job in jobs:
        table.add_row(job.spec.gpu, *_best_words(job), _state(job), job.job_id, styled(_remark(job), "dim"))
    listing().print(table)


def _best_words(job: JobRecord) -> tuple[str, str, str]:
    best = _best(job)
    if best["best_batch"] is None:
        return ("–" if job.result is None else "none"), "–", "–"
    return str(best["recommended_batch"]), best["recommended_conv_algo"], best["evidence"]


def _state(job: JobRecord) -> Text:
    return styled(job.state, _STYLES.get(job.state, ""))


def _remark(job: JobRecord) -> str:
    if job.state in (JobState.QUEUED, JobState.RUNNING) and job.stop_requested:
        return "is being stopped"
    if job.state is not JobState.SUCCEEDED:
        return brief(job.state_reason or "")
    return "" if job.damage is None else brief(f"its answer {job.damage}")


def _ago(seconds: float) -> str:
    return f"{_duration(time.time() - seconds)} ago"


def _took(job: JobRecord) -> str:
    if job.started_seconds is None:
        return "–"
    return _duration((job.ended_seconds or time.time()) - job.started_seconds)


def _duration(seconds: float) -> str:
    """Text of a duration in one unit: `12 s`, `3 min`, `5 h`, `2 d`; a larger unit from two of it on."""
    for unit, unit_seconds in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


# ── one job ─────────────────────────────────────────────────────────────────────────────────────


def print_job(job: JobRecord) -> None:
    """Prints what is stored about one job, such as its state and options, without its full result."""
    console = listing()
    console.print(Text.assemble((job.job_id, "bold"), " is ", _state(job)))
    if remark := _remark(job):
        console.print(remark)
    table = grid("left", "left")
    options = " ".join(f"--{option}={shlex.quote(text)}" for option, text in job.spec.options.items())
    table.add_row("options", options)
    if job.spec.working_dir is not None:
        table.add_row("working dir", job.spec.working_dir.where)
    if job.spec.fleet is not None:
        table.add_row("fleet", job.spec.fleet)
    table.add_row("submitted", _moment(job.submitted_seconds))
    for attempt in job.attempts:
        table.add_row("driver", f"{attempt.submission_id}, {_moment(attempt.started_seconds)}")
    if job.ended_seconds is not None:
        table.add_row("ended", f"{_moment(job.ended_seconds)}, after {_took(job)}")
    if job.study is not None:
        table.add_row("study", job.study)
    _answer(console, job, table)


def _answer(console: Console, job: JobRecord, table: Any) -> None:
    batch, algo, evidence = _best_words(job)
    if job.result is not None:
        table.add_row("answer", "nothing fits" if batch == "none" else f"batch {batch}, {algo}, {evidence}")
    console.print(table)


def _moment(seconds: float) -> str:
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))} ({_ago(seconds)})"
