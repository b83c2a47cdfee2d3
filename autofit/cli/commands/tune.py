"""`autofit tune`: the largest batch that fits."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from autofit.cli.interruption import current, print_document
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.search import CONFIG, PLACES, SEARCH
from autofit.cli.options.shared import GPU_MEM, GPUS, JSON, MODEL, QUIET, REPORT, SCRIPT, WARM
from autofit.cli.options.written import WRITE, files_to_write, write_files
from autofit.errors import AutofitError, ExitCode, UsageError
from autofit.events import TrialFinished, TuneStarted, fan_out
from autofit.paths import write_atomically
from autofit.settings.options import Topic
from autofit.settings.resolve import chosen_cards, resolve_settings
from autofit.settings.workloads import refer
from autofit_workers.spec.setup import Parallel

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.events import Event, EventSink
    from autofit.jobs.driver import JobDriver
    from autofit.settings.tune_settings import TuneSettings
    from autofit.tuning.result import TuneResult


_Answer = TypeVar("_Answer")


@click.command(cls=LongCommand)
@MODEL
@SCRIPT
@GPU_MEM
@GPUS
@SEARCH
@PLACES
@CONFIG
@WARM
@QUIET
@JSON
@option(
    Topic.OUTPUT,
    "--conv-plan",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the algorithm of each layer to this file, if mixed is the best.",
)
@REPORT
@WRITE
@option(
    Topic.OUTPUT, "--job", hidden=True, help="The job whose record takes the answer; drivers are given it."
)
@click.pass_obj
def tune(
    backend: Backend,
    /,
    *,
    config: Path | None,
    quiet: bool,
    as_json: bool,
    conv_plan: Path | None,
    report: Path | None,
    write: tuple[str, ...],
    job: str | None,
    **given: str | tuple[str, ...] | bool | None,
) -> ExitCode:
    """Find the largest batch that fits.

    Tries the convolution algorithms of the device's backend. Measures where there is a GPU, predicts where
    there is none. Without --gpu and --gpu-mem the answer is for the card of this machine. For several cards
    it predicts, and prints a row for each.

    Exit codes: 0 a batch was found; 3 nothing fits, or --max-trials or --max-seconds ended the search before
    anything was known to fit; 2 wrong options; 4 the workload fails; 5 storage, cluster or driver fail; 130
    interrupted.
    """
    if len(cards := chosen_cards(given, os.environ, config)) > 1:
        if report is not None or conv_plan is not None or write:
            raise UsageError("--report, --write and --conv-plan are about one card: name one with --gpu")
        on_cards = [resolve_settings({**given, "gpu": card}, os.environ, config) for card in cards]
        return _tune_each(backend, on_cards, quiet=quiet, as_json=as_json)
    if report is not None:
        from autofit.cli.commands.report_file import require_report

        require_report(report)
    files = files_to_write(write)
    with contextlib.ExitStack() as stack:
        driver = None if job is None else stack.enter_context(_driving(job, given))
        settings = resolve_settings(given, os.environ, config)
        workload = refer(settings.model, settings)
        result = _search(
            lambda emit: backend.tune(settings, workload, emit),
            settings,
            quiet=quiet,
            sinks=() if driver is None else (driver,),
        )
        if driver is not None:
            driver.answer(result)
    if result.parallels:
        settings = settings.with_parallel(Parallel.named(result.parallel))
    if conv_plan is not None:
        _write_plan(result, conv_plan)
    if as_json:
        print_document(result.to_json())
    else:
        from autofit.answers.tune.sections import tune_sections
        from autofit.cli.text.sections import print_sections

        memory = given["gpu_mem"]
        print_sections(
            tune_sections(
                result,
                settings,
                asked_memory=memory if isinstance(memory, str) else None,
                asked={**given, "config": config, "fresh": None},
            )
        )
    write_files(files, result.setting, settings, "nothing fits")
    failed = None if report is None else _write_report(backend, settings, result, report, quiet=quiet)
    return failed or (ExitCode.NOTHING_FITS if result.best is None else ExitCode.FOUND)


def _tune_each(backend: Backend, on_cards: Sequence[TuneSettings], *, quiet: bool, as_json: bool) -> ExitCode:
    """Searches for the largest batch on several GPU models, and prints a table or a JSON document.

    Args:
        on_cards: settings of each search, which differ in the card.
        quiet: whether to show no progress.
        as_json: whether to print a JSON document instead of the table.

    Returns:
        The exit code: that a batch was found, or that nothing fits on any card.
    """
    settings = on_cards[0]
    workload = refer(settings.model, settings)
    results = _search(lambda emit: backend.tune_each(on_cards, workload, emit), settings, quiet=quiet)
    if as_json:
        print_document(results.to_json())
    else:
        from autofit.answers.configuration.cards import tuned_cards_sections
        from autofit.cli.text.sections import print_sections

        print_sections(tuned_cards_sections(results))
    nothing_fits = all(result.best is None for result in results.answers)
    return ExitCode.NOTHING_FITS if nothing_fits else ExitCode.FOUND


def _write_plan(result: TuneResult, path: Path) -> None:
    if result.conv_plan is None:
        best = (
            "nothing fits"
            if result.best is None
            else f"the best is {result.setting_names[result.best.knobs]}"
        )
        click.echo(f"no plan was written to {path}: {best}; only --conv-algo mixed has a plan", err=True)
        return
    write_atomically(path, result.conv_plan.to_json())


def _write_report(
    backend: Backend, settings: TuneSettings, result: TuneResult, path: Path, *, quiet: bool
) -> ExitCode | None:
    from autofit.cli.commands.report_file import write_report
    from autofit.cli.text.progress import progress

    workload = refer(settings.model, settings)
    with progress(quiet=quiet) as emit:
        return write_report(path, lambda: backend.report_on_search(settings, workload, result, emit))


def _driving(
    job_id: str, given: Mapping[str, str | tuple[str, ...] | bool | None]
) -> contextlib.AbstractContextManager[JobDriver]:
    from autofit.jobs.driver import driving
    from autofit.jobs.submission import STORAGE_VARIABLE

    storage = given["storage"] or os.environ.get(STORAGE_VARIABLE)
    return driving(
        job_id, storage if isinstance(storage, str) else None, warn=lambda text: click.echo(text, err=True)
    )


def _search(
    ask: Callable[[EventSink], _Answer],
    settings: TuneSettings,
    *,
    quiet: bool,
    sinks: tuple[EventSink, ...] = (),
) -> _Answer:
    """Runs a search, shows its progress, serves its metrics if a port is set, and returns its answer.

    Args:
        ask: runs the search, given the function to call with its events.
        settings: settings of the search.
        quiet: whether to show no progress.
        sinks: further functions to call with each event.
    """
    watch = _Watch()
    with watch.for_interruption(), contextlib.ExitStack() as stack:
        from autofit.cli.text.progress import progress

        # Ray prints on stdout when one of its workers dies, whatever its logging is set to.
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        told: list[EventSink] = [watch, *sinks, stack.enter_context(progress(quiet=quiet))]
        if settings.metrics_port is not None:
            told.append(stack.enter_context(_served_metrics(settings, settings.metrics_port)))
        return ask(fan_out(*told))


@dataclass
class _Watch:
    """Event sink that counts finished trials, for the message if the search is interrupted.

    Attributes:
        study: name of the study (the stored search); None before it begins.
        num_trials: number of trials (predictions or runs of a configuration) that have finished.
    """

    study: str | None = None
    num_trials: int = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, TuneStarted):
            self.study = event.study
        elif isinstance(event, TrialFinished):
            self.num_trials += 1

    @contextlib.contextmanager
    def for_interruption(self) -> Iterator[None]:
        """Context manager that turns Ctrl-C or SIGTERM into an error, which names the study to be resumed."""
        current().describe = self._message
        try:
            yield
        except (KeyboardInterrupt, AutofitError) as ended:
            if isinstance(ended, AutofitError) and not current().is_wanted:
                raise
            raise current().error() from ended

    def _message(self) -> str:
        if self.study is None:
            return "interrupted before the search began: nothing was kept"
        trials = "1 trial" if self.num_trials == 1 else f"{self.num_trials} trials"
        return (
            f"interrupted after {trials}, kept in study {self.study}: "
            "the same command continues it, --fresh starts over"
        )


@contextlib.contextmanager
def _served_metrics(settings: TuneSettings, port: int) -> Iterator[EventSink]:
    """Context manager that serves a search's metrics at a port; yields their event sink."""
    from prometheus_client import CollectorRegistry, disable_created_metrics

    from autofit.serve.metrics import Metrics
    from autofit.serve.server import serve_metrics

    # Drops the `_created` series: the time at which this process began each count, which a restart changes.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    server = serve_metrics(registry, port, settings.metrics_host)
    try:
        click.echo(f"metrics at http://{settings.metrics_host}:{server.port}/metrics", err=True)
        yield Metrics(registry)
    finally:
        server.close()
