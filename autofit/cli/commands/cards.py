"""`autofit cards`: predicts on which GPUs a configuration fits, also for other commands with several GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.interruption import print_document
from autofit.cli.options.pages import LongCommand, option
from autofit.cli.options.shared import (
    BATCH_SIZE,
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
from autofit.hardware.gpus import catalogue
from autofit.questions.cards import CardsQuestion
from autofit.settings.options import Topic
from autofit.settings.parallels import parallels_by_number
from autofit.settings.prices import named_prices
from autofit.settings.resolve import chosen_cards, resolve_one_configuration
from autofit.settings.values import ALL_CARDS, gpu_numbers
from autofit.settings.workloads import refer
from autofit_workers.spec.parallel_kinds import FSDP

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.errors import ExitCode
    from autofit.hardware.gpus import Gpu
    from autofit.questions.cards import CardsAnswer
    from autofit.settings.tune_settings import TuneSettings
    from autofit_workers.spec.setup import Parallel

NUM_GPUS = option(
    Topic.CARD,
    "--gpus",
    "num_gpus",
    metavar="N,M,…",
    help="Ask it of so many GPUs of each card, such as 1,2,4,8; --parallel then names their kind alone. The "
    "batch is that of each GPU.",
)


@click.command(cls=LongCommand)
@MODEL
@SCRIPT
@BATCH_SIZE
@setting(
    "gpu",
    help_text="Only these cards; `autofit gpus` lists them.  [default: all]",
    metavar="CARD,…|all",
    complete=complete_gpus,
)
@CONV_ALGO
@KNOBS
@KEPT_FREE
@setting("risk")
@SAMPLES
@option(
    Topic.CARD,
    "--price",
    "prices",
    multiple=True,
    metavar="CARD=NUM",
    help="What an hour of a card costs, in any currency: tells how many samples a price of 1 pays for. "
    "Repeatable.",
)
@NUM_GPUS
@option(
    Topic.SEARCH,
    "--what-if",
    "with_traces",
    is_flag=True,
    help="Where the batch does not fit, also try the changes that cost a trace each, about a second.",
)
@WARM
@QUIET
@JSON
@click.pass_obj
def cards(
    backend: Backend,
    /,
    *,
    batch_size: int,
    num_gpus: str | None,
    prices: tuple[str, ...],
    with_traces: bool,
    quiet: bool,
    as_json: bool,
    gpu: str | None,
    **given: Any,
) -> ExitCode:
    """Predict on which cards one configuration fits.

    Prints a row for each card, the smallest memory first: whether the batch fits, the largest that does, how
    fast a step is, and the gentlest changes of settings that make it fit. With --gpus a row for each number
    of GPUs, by fully_shard unless --parallel names another kind, and the smallest number of each card. No GPU
    is needed.

    Exit codes: 0 it fits on some card; 3 it surely fits on none; 2 wrong options; 4 the workload fails or
    cannot be predicted.
    """
    gpus = cards_named(gpu or ALL_CARDS)
    asked = {**given, "batch_size": batch_size}
    parallels: tuple[Parallel, ...] = ()
    if num_gpus is not None:
        if with_traces:
            raise UsageError(
                "--what-if changes settings and cannot be combined with --gpus: drop one of them"
            )
        parallels = parallels_on_each(num_gpus, given)
    settings = resolve_one_configuration(given, "a table of cards", also=("risk",))
    require_no_script(parallels, settings)
    question = CardsQuestion(
        gpus=gpus,
        batch_size=batch_size,
        with_traces=with_traces,
        prices=named_prices(prices, gpus),
        parallels=parallels,
    )
    return answer_for_cards(
        backend, settings, question, "cards", asked, quiet=quiet, as_json=as_json
    ).exit_code


def parallels_on_each(num_gpus: str, given: dict[str, Any]) -> tuple[Parallel, ...]:
    """Parallelisms of one kind, one for each number of GPUs.

    Args:
        num_gpus: value of `--gpus`, such as `1,2,4`.
        given: typed options; `parallel`, the kind without a number of ranks, is taken out of them.

    Raises:
        UsageError: a number is wrong, or the kind cannot have it.
    """
    try:
        return parallels_by_number(given.pop("parallel") or FSDP, gpu_numbers(num_gpus))
    except ValueError as error:
        raise UsageError(f"--gpus: {error}") from error


def require_no_script(parallels: Sequence[Parallel], settings: TuneSettings) -> None:
    """Checks that `--gpus` was not given for a script.

    Raises:
        UsageError: it was.
    """
    if parallels and settings.script is not None:
        raise UsageError("--gpus spreads a model over GPUs, but a script decides that itself: drop --gpus")


def cards_named(text: object) -> tuple[Gpu, ...]:
    """GPU models that a value of `--gpu` names, such as `t4,l4` or `all`; empty for None.

    Raises:
        UsageError: a name is not in the catalogue.
    """
    return tuple(catalogue()[key] for key in chosen_cards({"gpu": text}, {}, None))


def answer_for_cards(
    backend: Backend,
    settings: TuneSettings,
    question: CardsQuestion,
    command: str,
    asked: Mapping[str, Any],
    *,
    quiet: bool,
    as_json: bool,
) -> CardsAnswer:
    """Predicts one configuration on several GPU models, prints a table or JSON, and returns the answer.

    Args:
        command: name of the autofit command that was typed, for commands that the answer suggests.
        asked: the typed options, from parameter name to value, for the same.
        quiet: whether to show no progress.
        as_json: whether to print a JSON document instead of the table.
    """
    workload = refer(settings.model, settings)
    from autofit.cli.text.progress import progress

    with progress(quiet=quiet) as emit:
        answer = backend.cards(settings, workload, question, emit)
    if as_json:
        print_document(answer.to_json())
    else:
        from autofit.answers.configuration.cards import cards_sections
        from autofit.cli.text.sections import print_sections

        print_sections(cards_sections(answer, command, asked))
    return answer
