"""`autofit observe`: stores the measured peak of a real run, to narrow later predictions of its workload."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.answers.schemas.names import OBSERVATIONS_SCHEMA
from autofit.cli.interruption import print_document
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.shared import (
    BATCH_SIZE_OR_OWN,
    CONV_ALGO,
    GPU,
    JSON,
    KNOBS,
    MODEL_OPTION,
    QUIET,
    SCRIPT,
)
from autofit.errors import UsageError
from autofit.predict.intervals import observations
from autofit.predict.intervals.observations import PeakKind
from autofit.questions.real_runs.observe import RealPeak, measured_in, read_peak
from autofit.questions.real_runs.observed_run import observed_run_in
from autofit.settings.options import Topic
from autofit.settings.resolve import resolve_one_configuration, resolve_workload_beside
from autofit.settings.workloads import refer
from autofit.units import format_bytes
from autofit_workers.spec.knobs import Knobs

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.predict.intervals.observations import Observation
    from autofit.questions.real_runs.observe import MeasuredPeak, ObservedPeak
    from autofit.questions.real_runs.observed_run import ObservedRun
    from autofit.settings.tune_settings import TuneSettings


@click.command(cls=LongCommand)
@click.argument("named", metavar="[FILE|MODEL]", required=False)
@option(
    Topic.OUTPUT,
    "--peak",
    metavar="SIZE",
    is_common=True,
    help="The peak that was seen, as 38.2G or in bytes.",
)
@option(
    Topic.OUTPUT,
    "--kind",
    type=click.Choice([kind.value for kind in PeakKind]),
    is_common=True,
    help="Which peak: torch.cuda.max_memory_allocated(), max_memory_reserved(), or what nvidia-smi shows.",
)
@option(
    Topic.OUTPUT,
    "--snapshot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    is_common=True,
    help="What a run's memory snapshot shows: torch.cuda.memory._dump_snapshot, or CSV of it. With a model "
    "or script beside it, where it differs from the prediction.",
)
@MODEL_OPTION
@SCRIPT
@BATCH_SIZE_OR_OWN
@CONV_ALGO
@KNOBS
@GPU
@option(Topic.OUTPUT, "--list", "lists", is_flag=True, is_common=True, help="Print what was observed so far.")
@option(Topic.OUTPUT, "--forget", metavar="ID", help="Take an observation back.")
@QUIET
@JSON
@click.pass_obj
def observe(
    backend: Backend,
    /,
    *,
    named: str | None,
    peak: str | None,
    kind: str | None,
    snapshot: Path | None,
    batch_size: int | None,
    lists: bool,
    forget: str | None,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Say what a real run needed.

    Compares it with the prediction, and keeps it: `estimate`, `check` and `tune` of the same workload,
    setting and card are sharper from then on. FILE is the JSON of a measured `tune`, rows of
    `python -m autofit_workers.trials.record`, or what `autofit.observed` wrote of a training loop; with
    --peak and --kind, or --snapshot, the argument is the model. A snapshot alone says what needs no
    prediction: peak, leaks, unused memory, what would save.
    """
    says_peak = peak is not None or snapshot is not None
    file, given["model"] = _file_or_model(named, given["model"], is_peak=says_peak)
    if lists or forget is not None:
        _print_kept(
            _forgotten(forget) if forget is not None else observations.kept(), forget, as_json=as_json
        )
        return
    if snapshot is not None:
        if file is not None or peak is not None or kind is not None:
            raise UsageError("--snapshot says the peak itself: leave out FILE, --peak and --kind")
        _show_snapshot(backend, snapshot, batch_size, given, quiet=quiet, as_json=as_json)
        return
    if file is not None:
        run = observed_run_in(file)
        if peak is not None or kind is not None or (batch_size is not None and run is None):
            raise UsageError(
                "FILE says peak, kind and batch itself: leave out --peak, --kind and --batch-size"
            )
        asked = _of_file(file, given) if run is None else [_of_run(run, given, batch_size)]
    elif peak is None or kind is None:
        raise UsageError(
            "give --peak SIZE with --kind allocated, reserved or device, or the FILE of a measured answer"
        )
    else:
        settings = resolve_one_configuration(given, "an observation")
        if settings.script is None and batch_size is None:
            raise UsageError("Missing option '--batch-size'.")
        real = RealPeak(kind=PeakKind(kind), num_bytes=read_peak(peak), batch_size=batch_size)
        asked = [(settings, real)]
    from autofit.cli.text.progress import progress

    answers: list[ObservedPeak] = []
    with progress(quiet=quiet) as emit:
        for each, real in asked:
            answers.append(backend.observe(each, refer(each.model, each), real, emit))
    if not as_json:
        click.echo("\n".join(answer.in_words() for answer in answers))
    elif file is None:
        print_document(answers[0].to_json())
    else:
        _print_json([answer.to_dict() for answer in answers])


def _show_snapshot(
    backend: Backend,
    path: Path,
    batch_size: int | None,
    given: dict[str, Any],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Prints what a snapshot shows, beside the prediction of the model or script that is named."""
    from autofit.answers.snapshot import snapshot_sections
    from autofit.explain.snapshots.run import open_run
    from autofit.questions.real_runs.snapshot import observed_snapshot

    settings = resolve_workload_beside(given, batch_size, "an observation")
    run = open_run(path)
    if settings is None:
        answer = observed_snapshot(run)
    else:
        from autofit.cli.text.progress import progress

        with progress(quiet=quiet) as emit:
            workload = refer(settings.model, settings)
            answer = backend.compare_snapshot(settings, workload, run, batch_size, emit)
    if as_json:
        print_document(answer.to_json())
    else:
        from autofit.cli.text.sections import print_sections

        print_sections(snapshot_sections(answer))


def _file_or_model(named: str | None, model: str | None, *, is_peak: bool) -> tuple[Path | None, str | None]:
    """File and model that a command line of `autofit observe` names, each None if not named.

    Args:
        named: argument FILE or MODEL; it is a model if a peak is given, no model and no such file exists.
        model: value of `--model`.
        is_peak: whether `--peak` or `--snapshot` is given.
    """
    if named is None:
        return None, model
    if not is_peak or model is not None or Path(named).is_file():
        return Path(named), model
    return None, named


def _of_file(file: Path, given: dict[str, Any]) -> list[tuple[TuneSettings, RealPeak]]:
    """Settings and measured peak of each measurement in a file.

    Args:
        file: answer of a measured `autofit tune`, or rows of measurements.
        given: options of the command. If they name a model or script, only its measurements are taken.

    Raises:
        UsageError: the file has no measurements of the named model.
    """
    found = measured_in(file)
    named = given.get("model") or given.get("script")
    if named is not None:
        settings = resolve_one_configuration(given, "an observation")
        name = refer(settings.model, settings).name
        others = sorted({each.workload for each in found})
        found = [each for each in found if each.workload == name]
        if not found:
            raise UsageError(
                f"{file} holds measurements of {', '.join(others)}, none of {name}: "
                "name one of those with --model"
            )
    return [
        (
            _settings(each, {**given, **({} if named else {"model": each.workload})}),
            RealPeak(kind=PeakKind.RESERVED, num_bytes=each.peak_bytes, batch_size=each.batch_size),
        )
        for each in found
    ]


def _of_run(run: ObservedRun, given: dict[str, Any], batch_size: int | None) -> tuple[TuneSettings, RealPeak]:
    """Settings and peak of a run that `autofit.observed` noted; options say what its file leaves open.

    Raises:
        UsageError: file and options together say too little, or an option says what the file says.
    """
    named = given.get("model") or given.get("script")
    if named is None and run.workload is None:
        raise UsageError("FILE does not say which workload it is of: name it with --model or --script")
    if batch_size is not None and run.batch_size not in (None, batch_size):
        raise UsageError(f"FILE is of batch {run.batch_size}: leave out --batch-size {batch_size}")
    asked = {**given, **({} if named else {"model": run.workload})}
    settings = resolve_one_configuration(asked, "an observation")
    if settings.gpu is not None:
        raise UsageError("FILE says the card itself: leave --gpu out")
    if run.knobs:
        if settings.knobs != Knobs() or settings.conv_algos is not None:
            raise UsageError("FILE says the knobs itself: leave them out")
        settings = resolve_one_configuration({**asked, **run.knobs}, "an observation")
    batch_size = batch_size or run.batch_size
    if settings.script is None and batch_size is None:
        raise UsageError("FILE does not say the batch size: give it with --batch-size")
    kind, num_bytes = run.peak
    settings = dataclasses.replace(
        settings,
        gpu=run.gpu,
        setup=settings.setup
        if settings.script is not None
        else dataclasses.replace(settings.setup, mode=run.mode),
    )
    return settings, RealPeak(kind=kind, num_bytes=num_bytes, batch_size=batch_size)


def _settings(measured: MeasuredPeak, given: dict[str, Any]) -> TuneSettings:
    settings = resolve_one_configuration(given, "an observation")
    if settings.knobs != Knobs() or settings.conv_algos is not None or settings.gpu is not None:
        raise UsageError("FILE says card and knobs itself: leave --gpu and the knobs out")
    return dataclasses.replace(
        settings,
        gpu=measured.gpu,
        knobs=measured.knobs,
        conv_algos=(measured.knobs.conv_algo,),
        setup=dataclasses.replace(settings.setup, mode=measured.mode if settings.script is None else None),
    )


def _forgotten(name: str) -> list[Observation]:
    found = observations.forget(name)
    if not found:
        raise UsageError(f"there is no observation {name}: `autofit observe --list` shows them")
    return found


def _print_kept(found: list[Observation], forget: str | None, *, as_json: bool) -> None:
    """Prints stored or forgotten observations, as lines or as JSON."""
    if as_json:
        _print_json([{"id": seen.id, **dataclasses.asdict(seen)} for seen in found])
        return
    if not found:
        click.echo("nothing was observed yet")
    for seen in found:
        start = "forgotten: " if forget else ""
        where = f" on {seen.card}" if seen.card else ""
        click.echo(
            f"{start}{seen.id}  {seen.workload} at batch {seen.batch_size}{where}: {seen.kind} peak of "
            f"{format_bytes(seen.peak_bytes)}, {seen.day}"
        )


def _print_json(rows: list[dict[str, Any]]) -> None:
    print_document(json.dumps({"schema": OBSERVATIONS_SCHEMA, "observations": rows}, indent=2))
