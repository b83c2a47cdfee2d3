"""`autofit request`: the smallest request that fits, as a scheduler reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from autofit.cli.commands.cards import NUM_GPUS, cards_named, parallels_on_each, require_no_script
from autofit.cli.interruption import print_document
from autofit.cli.options.locks import complete_name
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.shared import (
    BATCH_SIZE_OR_OWN,
    CONV_ALGO,
    JSON,
    KEPT_FREE,
    KNOBS,
    MODEL,
    QUIET,
    SAMPLES,
    SCRIPT,
    WARM,
    complete_gpus,
    setting,
)
from autofit.errors import UsageError
from autofit.locks.lock_file import LOCK_NAME
from autofit.questions.cards import CardsQuestion
from autofit.settings.options import Topic
from autofit.settings.resolve import resolve_one_configuration
from autofit.settings.values import ALL_CARDS
from autofit.settings.workloads import refer

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.errors import ExitCode


def _complete_scheduler(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Shell completions of `--for`."""
    from autofit.requests.formats import FORMATS

    return [
        CompletionItem(each.name, help=each.scheduler)
        for each in FORMATS.values()
        if each.name.startswith(incomplete)
    ]


@click.command(cls=LongCommand)
@MODEL
@SCRIPT
@BATCH_SIZE_OR_OWN
@option(
    Topic.MODEL,
    "--lock",
    "locked",
    metavar="NAME",
    is_common=True,
    shell_complete=complete_name,
    help=f"Take the configuration from {LOCK_NAME} of this folder, where `autofit lock` wrote it; options "
    "beside it go before its own.",
)
@option(
    Topic.OUTPUT,
    "--for",
    "scheduler",
    required=True,
    is_common=True,
    metavar="SCHEDULER",
    shell_complete=_complete_scheduler,
    help="Whose request to print: slurm, kubernetes, kai, ray, skypilot, dstack or runai.",
)
@setting(
    "gpu",
    help_text="The cards to choose among; `autofit gpus` lists them.  [default: all]",
    metavar="CARD,…|all",
    complete=complete_gpus,
)
@NUM_GPUS
@CONV_ALGO
@KNOBS
@KEPT_FREE
@setting("risk")
@SAMPLES
@option(
    Topic.CARD,
    "--prices",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What an hour of a card costs, in any currency: a TOML file with lines such as t4 = 0.5, or a CSV "
    "file with lines such as t4,0.5. The cards that are cheapest for an epoch then come first.",
)
@WARM
@QUIET
@JSON
@click.pass_obj
def request(
    backend: Backend,
    /,
    *,
    batch_size: int | None,
    locked: str | None,
    scheduler: str,
    num_gpus: str | None,
    prices: Path | None,
    quiet: bool,
    as_json: bool,
    gpu: str | None,
    **given: Any,
) -> ExitCode:
    """Print the smallest request that fits.

    The text is what the scheduler reads, with comments that say what it rests on. It asks for no more than
    the high end of the prediction needs, with context, margin and what is kept for others: the verdict is
    that of `autofit cards`. A card on which it may not fit is not asked for by name. No GPU is needed.

    Exit codes: 0 there is a request that surely fits; 3 nothing that can be asked for fits; 6 nothing surely
    fits, and some card may; 2 wrong options; 4 the workload fails or cannot be predicted.
    """
    from autofit.requests.answer import format_named, smallest_request
    from autofit.settings.prices import read_prices

    form = format_named(scheduler)
    if locked is not None:
        batch_size, given = _of_lock(locked, batch_size, given)
    gpus = cards_named(gpu or ALL_CARDS)
    hourly = {} if prices is None else read_prices(prices)
    parallels = () if num_gpus is None else parallels_on_each(num_gpus, given)
    settings = resolve_one_configuration(given, "a request", also=("risk",))
    require_no_script(parallels, settings)
    if batch_size is None and settings.script is None:
        raise UsageError("how many samples a step? Give --batch-size N")
    question = CardsQuestion(
        gpus=tuple(each for each in gpus if form.gives(each)) or gpus,
        batch_size=batch_size,
        prices={each.key: hourly[each.key] for each in gpus if each.key in hourly},
        parallels=parallels,
    )
    from autofit.cli.text.progress import progress

    with progress(quiet=quiet) as emit:
        found = backend.cards(settings, refer(settings.model, settings), question, emit)
    answer = smallest_request(
        found, form, names_cards=gpu not in (None, ALL_CARDS), num_nodes=settings.num_nodes
    )
    if as_json:
        print_document(answer.to_json())
    elif answer.request is None:
        click.echo(f"no request: {answer.reason}", err=True)
    else:
        from autofit.answers.configuration.request import request_text

        click.echo(request_text(answer), nl=False)
    return answer.exit_code


def _of_lock(name: str, batch_size: int | None, given: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """Batch size and options of a locked configuration, with what was typed beside it.

    Raises:
        LockError: there is no lock, or no such configuration in it.
    """
    from autofit.locks.configurations import configuration_of
    from autofit.locks.lock_file import read_lock

    found = read_lock(Path(LOCK_NAME)).configuration(name)
    if not found.arguments:
        raise UsageError(
            f"{name} is locked by a test, whose code describes it: give --model and --batch-size"
        )
    configuration = configuration_of(found)
    typed = {key: value for key, value in given.items() if value not in (None, False, ())}
    return batch_size or configuration.batch_size, {**configuration.options, **typed}
