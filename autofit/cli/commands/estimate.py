"""`autofit estimate`: predicts the peak memory of one configuration."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.commands.cards import answer_for_cards, cards_named
from autofit.cli.interruption import print_document
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.shared import (
    BATCH_SIZE_OR_OWN,
    CONV_ALGO,
    GPUS,
    JSON,
    KNOBS,
    MODEL,
    QUIET,
    REPORT,
    SAMPLES,
    SCRIPT,
    WARM,
)
from autofit.cli.options.written import WRITE, files_to_write, setting_of, write_files
from autofit.errors import UsageError
from autofit.questions.cards import CardsQuestion
from autofit.settings.options import Topic
from autofit.settings.resolve import resolve_one_configuration
from autofit.settings.workloads import refer

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.errors import ExitCode
    from autofit.predict.estimate import Estimate
    from autofit.questions.summary import SummarizedEstimate
    from autofit.questions.what_if import WhatIf
    from autofit.settings.tune_settings import TuneSettings

_SIMULATE, _SUMMARY = "simulate", "summary"


@click.command(cls=LongCommand)
@MODEL
@SCRIPT
@BATCH_SIZE_OR_OWN
@CONV_ALGO
@KNOBS
@GPUS
@SAMPLES
@option(
    Topic.SEARCH,
    "--method",
    type=click.Choice((_SIMULATE, _SUMMARY)),
    default=_SIMULATE,
    help="simulate: trace a step on a simulated GPU and replay it through PyTorch's allocator. "
    "summary: add up the layers' outputs as torchsummary does, and explain why a real step differs.",
)
@option(
    Topic.SEARCH,
    "--what-if",
    "asks_what_if",
    is_flag=True,
    help="Rank the changes that would save memory at this batch.",
)
@REPORT
@WRITE
@WARM
@QUIET
@JSON
@click.pass_obj
def estimate(
    backend: Backend,
    /,
    *,
    batch_size: int | None,
    method: str,
    asks_what_if: bool,
    report: Path | None,
    write: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    **given: str | tuple[str, ...] | None,
) -> ExitCode | None:
    """Predict what one configuration needs.

    No GPU is needed. Without --gpu an sm_80 card is assumed, and the range covers all of NVIDIA's
    architectures. Of several cards it prints a table.
    """
    gpus = cards_named(given["gpu"])
    settings = resolve_one_configuration({**given, "gpu": gpus[0].key if gpus else None}, "an estimate")
    if settings.script is not None and (asks_what_if or method == _SUMMARY):
        raise UsageError("--what-if and --method summary need --model: leave them out with --script")
    if settings.script is None and batch_size is None:
        raise UsageError("Missing option '--batch-size'.")
    asked = {**given, "batch_size": batch_size}
    if len(gpus) > 1:
        _require_one_card_for(method, report, write)
        question = CardsQuestion(gpus=gpus, batch_size=batch_size, with_traces=asks_what_if)
        answer_for_cards(backend, settings, question, "check", asked, quiet=quiet, as_json=as_json)
        return None
    if report is not None:
        from autofit.cli.commands.report_file import require_report

        require_report(report)
    files = files_to_write(write)
    workload = refer(settings.model, settings)
    from autofit.cli.text.progress import progress

    with progress(quiet=quiet) as emit:
        summary, levers = None, None
        if batch_size is not None and method == _SUMMARY:
            summary = backend.summarize(settings, workload, batch_size, emit)
        if batch_size is not None and asks_what_if:
            levers = backend.what_if(settings, workload, batch_size, emit)
        if summary is not None:
            answer = summary.estimate
        elif levers is not None:
            answer = levers.base
        else:
            answer = backend.estimate(settings, workload, batch_size, emit)
    if as_json:
        print_document(_document(answer, summary, levers, settings.epoch_samples))
    else:
        _print(answer, summary, levers, settings, asked)
    write_files(files, setting_of(settings, answer, answer.called_batch_size), settings, "")
    if report is not None:
        from autofit.cli.commands.report_file import write_report

        with progress(quiet=quiet) as emit:
            return write_report(
                report, lambda: backend.report_on_estimate(settings, workload, answer, levers, emit)
            )
    return None


def _require_one_card_for(method: str, report: Path | None, write: tuple[str, ...]) -> None:
    if method == _SUMMARY or report is not None or write:
        raise UsageError("--method summary, --report and --write are about one card: name one with --gpu")


def _document(
    answer: Estimate, summary: SummarizedEstimate | None, levers: WhatIf | None, epoch_samples: int | None
) -> str:
    document = answer.to_dict() if summary is None else summary.to_dict()
    if epoch_samples is not None:
        per_second = answer.samples_per_second
        document["epoch_seconds"] = None if per_second is None else epoch_samples / per_second
    document["method"] = _SIMULATE if summary is None else _SUMMARY
    if levers is not None:
        document["what_if"] = levers.to_dict()
        document["advice"] = None if levers.advice is None else dataclasses.asdict(levers.advice)
    return json.dumps(document, indent=2)


def _print(
    answer: Estimate,
    summary: SummarizedEstimate | None,
    levers: WhatIf | None,
    settings: TuneSettings,
    asked: Mapping[str, Any],
) -> None:
    """Prints an estimate as text: its sections or a summary, then levers if they were asked for."""
    from autofit.answers.configuration.estimate import estimate_sections
    from autofit.answers.configuration.summary import summary_sections
    from autofit.answers.configuration.what_if import what_if_sections
    from autofit.cli.text.sections import print_sections

    if summary is not None:
        sections = summary_sections(summary)
    else:
        of_script = settings.script is not None
        sections = estimate_sections(
            answer, settings.gpu, of_script=of_script, epoch_samples=settings.epoch_samples
        )
    print_sections((*sections, *(() if levers is None else what_if_sections(levers, asked))))
