"""Writes the files that `--write` asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from autofit.cli.options.pages import option
from autofit.cli.options.shared import format_and_file
from autofit.settings.options import Topic

if TYPE_CHECKING:
    from autofit.predict.estimate import Estimate
    from autofit.questions.check import CheckResult
    from autofit.settings.tune_settings import TuneSettings
    from autofit.written.setting import Setting
    from autofit.written.writing import Wish


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions of `--write FORMAT=FILE`: formats, then files."""
    from autofit.written.formats import FORMATS

    return format_and_file({each.name: each.tool for each in FORMATS.values()}, incomplete)


WRITE: Callable[..., Any] = option(
    Topic.OUTPUT,
    "--write",
    "write",
    multiple=True,
    is_common=True,
    metavar="FORMAT=FILE",
    shell_complete=_complete,
    help="Write the setting into the file of a trainer or launcher, whose other keys and comments stay. "
    "Repeatable; transformers-json, lightning, accelerate, deepspeed, torchrun, …: a wrong name lists them.",
)


def files_to_write(texts: tuple[str, ...]) -> tuple[Wish, ...]:
    """Reads `--write`, and checks that the files can be written; called before long work.

    Raises:
        UsageError: a format or a file is wrong.
    """
    if not texts:
        return ()
    from autofit.written.writing import wishes

    return wishes(texts)


def write_files(
    files: tuple[Wish, ...], setting: Setting | None, settings: TuneSettings, why_not: str
) -> None:
    """Writes a setting into files, and says on stderr where, how it is used, and what is not in them.

    Args:
        files: files to write.
        setting: the configuration; None if there is none to write.
        settings: settings of the command, which say how a script is started.
        why_not: why nothing is written, if there is no setting.

    Raises:
        UsageError: a file cannot be written; then none is.
    """
    if setting is None:
        for wish in files:
            click.echo(f"nothing was written to {wish.path}: {why_not}", err=True)
        return
    from autofit.written.writing import write_setting

    for written in write_setting(started(setting, settings), files):
        what = f"written to {written.path}" if written.is_changed else f"{written.path} needs no change"
        click.echo(f"{what} ({written.format}): {written.use}", err=True)
        for note in written.notes:
            click.echo(f"  {note}", err=True)


def setting_of(
    settings: TuneSettings, answer: Estimate | CheckResult, batch_size: int | None = None
) -> Setting:
    """Setting of a command about one configuration, to be written.

    Args:
        answer: answer of the command.
        batch_size: samples a batch of one rank; None for those of the answer.
    """
    from autofit.written.setting import Setting
    from autofit_workers.spec.setup import TRAIN

    size = answer.batch_size if batch_size is None else batch_size
    return Setting(
        batch_size=size,
        knobs=answer.knobs,
        accumulation=answer.knobs.num_batches(size),
        parallel=settings.setup.parallel,
        torch_release=settings.setup.torch,
        trains=answer.mode in (None, TRAIN),
    )


def started(setting: Setting, settings: TuneSettings) -> Setting:
    """Setting with the machines and the script that a command was told of."""
    from autofit.written.setting import ScriptStart
    from autofit_workers.spec.protocol import ScriptCall
    from autofit_workers.spec.setup import Parallel

    script = None
    parallel = setting.parallel
    if settings.script is not None:
        call = ScriptCall(arguments=settings.script_arguments, batch_argument=settings.batch_argument)
        script = ScriptStart(
            words=(settings.script, *call.arguments_at(setting.batch_size)),
            batch_argument=settings.batch_argument,
            batch_variable=settings.batch_variable,
        )
        parallel = parallel or Parallel.of_script(settings.num_ranks_of_script)
    return dataclasses.replace(setting, num_nodes=settings.num_nodes, script=script, parallel=parallel)
