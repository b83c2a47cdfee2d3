"""`autofit check`: whether one configuration fits, with an exit code that scripts can branch on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from autofit.cli.commands.cards import answer_for_cards, cards_named
from autofit.cli.interruption import print_document
from autofit.cli.options.locks import complete_name
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.shared import (
    CONV_ALGO,
    GPU_MEM,
    GPUS,
    JSON,
    KEPT_FREE,
    KNOBS,
    MODEL_OPTION,
    QUIET,
    SAMPLES,
    SCRIPT,
    WARM,
    batch_size,
    combined,
    complete_model,
)
from autofit.cli.options.written import WRITE, files_to_write, setting_of, write_files
from autofit.errors import ExitCode, UsageError
from autofit.locks.lock_file import LOCK_NAME
from autofit.paths import require_writable, write_atomically
from autofit.questions.cards import CardsQuestion
from autofit.settings.options import Topic
from autofit.settings.resolve import resolve_one_configuration
from autofit.settings.workloads import refer

if TYPE_CHECKING:
    from autofit.cli.backend import Backend


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions of a model, or after --lock of a configuration."""
    return (complete_name if ctx.params.get("against_lock") else complete_model)(ctx, param, incomplete)


_LOCK = combined(
    option(
        Topic.OUTPUT,
        "--lock",
        "against_lock",
        is_flag=True,
        is_eager=True,  # the completion of what comes after it goes by it
        is_common=True,
        help="Check instead whether peaks grew since `autofit lock` wrote them: of the configurations that "
        "are named in the place of MODEL, or of all.",
    ),
    option(
        Topic.OUTPUT,
        "--file",
        "lock_file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help=f"With --lock, the lock.  [default: {LOCK_NAME}]",
    ),
    option(
        Topic.OUTPUT,
        "--sarif",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="With --lock, write there as SARIF which lines grew, for code hosts that show it on them.",
    ),
    option(
        Topic.OUTPUT,
        "--tolerance",
        metavar="SHARE",
        help="With --lock, by how much a peak may grow, such as 2%.  [default: of pyproject.toml, else 2%]",
    ),
)


@click.command(cls=LongCommand)
@click.argument("named_model", nargs=-1, metavar="[MODEL]", shell_complete=_complete)
@MODEL_OPTION
@SCRIPT
@batch_size()
@_LOCK
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
    backend: Backend,
    /,
    *,
    named_model: tuple[str, ...],
    batch_size: int | None,
    against_lock: bool,
    lock_file: Path | None,
    sarif: Path | None,
    tolerance: str | None,
    quiet: bool,
    as_json: bool,
    write: tuple[str, ...],
    **given: Any,
) -> ExitCode:
    """Predict if one configuration fits.

    Prints one line, of several cards a table. Where it does not surely fit, changes are tried for up to 10 s,
    and what they save and the gentlest command that fits come below. No GPU is needed. Without --gpu and
    --gpu-mem the answer is for the card of this machine.

    Exit codes: 0 it fits (the high end of the prediction is within the budget); 3 it does not fit (even
    the low end runs out of memory, or memory that grows with each step fills the budget before the run
    ends); 6 unsure, thrashing included; 2 wrong options; 4 the workload fails or cannot be predicted; 5 the
    machine or its driver fails. Of several cards: 0 it fits on some; 3 it surely fits on none, never 6. With
    --lock: 0 no peak grew by more than the tolerance; 7 one did.
    """
    options = {name: value for name, value in given.items() if value not in (None, False, ())}
    if against_lock:
        _require_nothing_beside_lock({**options, "batch_size": batch_size, "write": write})
        return _check_lock(
            backend, named_model, lock_file, tolerance, sarif=sarif, quiet=quiet, as_json=as_json
        )
    if (lock_file, sarif, tolerance) != (None, None, None):
        raise UsageError("--file, --sarif and --tolerance are of --lock: give it too, or leave them out")
    options = _with_model(options, named_model)
    if batch_size is None:
        raise UsageError("Missing option '--batch-size'.")
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


def _with_model(options: dict[str, Any], named: tuple[str, ...]) -> dict[str, Any]:
    """Options with the model that is named, by the argument or by `--model`."""
    if len(named) > 1:
        raise UsageError(f"Got unexpected extra argument ({named[1]})")
    for name in named:
        if options.get("model") not in (None, name):
            raise UsageError(f"two models are named, {name} and --model {options['model']}: leave one out")
        options = {"model": name, **options}
    return options


def _require_nothing_beside_lock(given: dict[str, Any]) -> None:
    misplaced = [name for name, value in given.items() if value not in (None, ())]
    if misplaced:
        raise UsageError(
            f"--lock checks what is locked and takes no --{misplaced[0].replace('_', '-')}: leave it out, or "
            "lock it with `autofit lock --name NAME …`"
        )


def _check_lock(
    backend: Backend,
    names: tuple[str, ...],
    lock_file: Path | None,
    tolerance: str | None,
    *,
    sarif: Path | None,
    quiet: bool,
    as_json: bool,
) -> ExitCode:
    """Compares configurations with their lock, prints the answer, and returns the exit code."""
    if sarif is not None:
        require_writable(sarif)
    from autofit.cli.text.progress import progress
    from autofit.locks.checking import check_lock
    from autofit.locks.configurations import read_configured, tolerance_of

    allowed = None if tolerance is None else tolerance_of(tolerance, "--tolerance")
    configured = read_configured(Path.cwd())
    with progress(quiet=quiet) as emit:
        answer = check_lock(
            lock_file or Path(LOCK_NAME),
            configured,
            names,
            lambda wanted: backend.lock(wanted, Path.cwd(), emit),
            tolerance=allowed,
        )
    if as_json:
        print_document(answer.to_json())
    else:
        from autofit.answers.locks.changes import lock_check_sections
        from autofit.cli.text.sections import print_sections

        print_sections(lock_check_sections(answer))
    if sarif is not None:
        from autofit.answers.locks.sarif import sarif_text

        write_atomically(sarif, sarif_text(answer, Path.cwd()))
    return answer.exit_code
