"""`autofit check`: whether one configuration fits, with an exit code that scripts can branch on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from autofit.cli.commands.cards import answer_for_cards, cards_named
from autofit.cli.interruption import print_document
from autofit.cli.options.pages import LongCommand
from autofit.cli.options.shared import (
    BATCH_SIZE,
    CONV_ALGO,
    GPU_MEM,
    GPUS,
    JSON,
    KEPT_FREE,
    KNOBS,
    MODEL,
    QUIET,
    SAMPLES,
    SCRIPT,
    WARM,
)
from autofit.cli.options.written import WRITE, files_to_write, setting_of, write_files
from autofit.errors import ExitCode, UsageError
from autofit.questions.cards import CardsQuestion
from autofit.settings.resolve import resolve_one_configuration
from autofit.settings.workloads import refer

if TYPE_CHECKING:
    from autofit.cli.backend import Backend


@click.command(cls=LongCommand)
@MODEL
@SCRIPT
@BATCH_SIZE
@GPU_MEM
@GPUS
@CONV_ALGO
@KNOBS
@KEPT_FREE
@SAMPLES
@WARM
@QUIET
@WRITE
@JSON
@click.pass_obj
def check(
    backend: Backend, /, batch_size: int, quiet: bool, as_json: bool, write: tuple[str, ...], **given: Any
) -> ExitCode:
    """Predict if one configuration fits.

    Prints one line, of several cards a table. Where it does not surely fit, changes are tried for up to 10 s,
    and what they save and the gentlest command that fits come below. No GPU is needed. Without --gpu and
    --gpu-mem the answer is for the card of this machine.

    Exit codes: 0 it fits (the high end of the prediction is within the budget); 3 it does not fit (even
    the low end runs out of memory, or memory that grows with each step fills the budget before the run
    ends); 6 unsure, thrashing included; 2 wrong options; 4 the workload fails or cannot be predicted; 5 the
    machine or its driver fails. Of several cards: 0 it fits on some; 3 it surely fits on none, never 6.
    """
    options = {name: value for name, value in given.items() if value not in (None, False, ())}
    gpus = cards_named(options.get("gpu"))
    settings = resolve_one_configuration({**options, "gpu": gpus[0].key if gpus else None}, "a check")
    asked = {**options, "batch_size": batch_size}
    if len(gpus) > 1 and write:
        raise UsageError("--write is about one card: name one with --gpu")
    if len(gpus) > 1:
        question = CardsQuestion(gpus=gpus, batch_size=batch_size, with_traces=True)
        return answer_for_cards(
            backend, settings, question, "check", asked, quiet=quiet, as_json=as_json
        ).exit_code
    files = files_to_write(write)
    workload = refer(settings.model, settings)
    from autofit.cli.text.progress import progress

    with progress(quiet=quiet) as emit:
        result = backend.check(settings, workload, batch_size, emit)
    if as_json:
        print_document(result.to_json())
    else:
        from autofit.answers.configuration.check import check_sections
        from autofit.cli.text.sections import print_sections

        print_sections(check_sections(result, options, asked))
    fits = result.verdict.exit_code is ExitCode.FOUND
    setting = setting_of(settings, result) if fits else None
    write_files(files, setting, settings, f"it does not surely fit at batch {batch_size}")
    return result.verdict.exit_code
