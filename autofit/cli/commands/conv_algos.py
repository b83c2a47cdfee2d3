"""`autofit conv-algos`: the convolution algorithms, and the workspace of each for a model's layers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from autofit.answers.schemas.names import CONV_ALGOS_SCHEMA
from autofit.cli.commands.models_gpus import print_list
from autofit.cli.options.shared import GPU, JSON, MODEL, QUIET, combined, setting
from autofit.errors import UsageError
from autofit.settings.resolve import resolve_settings
from autofit.settings.workloads import refer
from autofit_workers.spec import conv_algorithms as conv
from autofit_workers.spec.devices import DEVICE_KINDS

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.questions.conv_layers import ConvLayers

_BATCH_SIZE = 8

_OF_A_MODEL = combined(
    click.option("--batch-size", type=click.IntRange(min=1), metavar="N",
                 help="Samples a step.  [default: 8]"),
    GPU,
    click.option(
        "--device", type=click.Choice(DEVICE_KINDS), metavar="cuda|cpu",
        help="Device to predict the layers for; it need not be present.  [default: cuda]",
    ),
    setting("mode"),
)  # fmt: skip


@click.command("conv-algos")
@MODEL
@_OF_A_MODEL
@QUIET
@JSON
@click.pass_obj
def conv_algos(
    backend: Backend,
    /,
    batch_size: int | None,
    device: str | None,
    quiet: bool,
    as_json: bool,
    **given: str | None,
) -> None:
    """List the convolution algorithms.

    With MODEL, also shows how many of its layers each algorithm applies to, and predicts the memory that
    it takes for every layer besides the output.
    """
    if given["model"] is None:
        _require_model_for(batch_size=batch_size, device=device, **given)
        _print_all(as_json=as_json)
        return
    found = _of_model(backend, batch_size or _BATCH_SIZE, device, given, quiet=quiet)
    if as_json:
        print_list(CONV_ALGOS_SCHEMA, **found.to_dict())
        return
    from autofit.answers.configuration.conv_layers import conv_layers_sections
    from autofit.cli.text.sections import print_sections

    print_sections(conv_layers_sections(found))


def _require_model_for(**given: object) -> None:
    misplaced = [name for name, value in given.items() if value is not None]
    if misplaced:
        raise UsageError(f"--{misplaced[0].replace('_', '-')} needs a model: name one, such as resnet50")


def _of_model(
    backend: Backend, batch_size: int, device: str | None, given: dict[str, str | None], *, quiet: bool
) -> ConvLayers:
    settings = resolve_settings(given, {}, None)
    if device == "cpu" and settings.gpu is not None:
        raise UsageError("--gpu names a card, but --device cpu uses none: leave out one of them")
    workload = refer(settings.model, settings)
    from autofit.cli.text.progress import progress

    with progress(quiet=quiet) as emit:
        card = None if device == "cpu" else settings.card
        return backend.conv_layers(workload, batch_size, card, settings.setup, emit)


def _print_all(*, as_json: bool) -> None:
    """Prints all convolution algorithms, as a table or as JSON."""
    if as_json:
        print_list(CONV_ALGOS_SCHEMA, conv_algos=[dataclasses.asdict(each) for each in conv.offered()])
        return
    from autofit.cli.text.output import headed, listing, styled

    table = headed(("--conv-algo", "left"), ("what it does", "left"))
    for algorithm in conv.offered():
        where = ", ".join(algorithm.device_kinds)
        table.add_row(styled(algorithm.name, "bold"), f"{algorithm.explanation} ({where})")
        table.add_row("", f"takes {algorithm.takes}")
        if algorithm.source:
            table.add_row("", styled(algorithm.source, "dim"))
        for line in (line for kind in algorithm.device_kinds[:1] for line in algorithm.lines_on(kind)):
            table.add_row("", styled(line, "cyan"))
    listing().print(table)
