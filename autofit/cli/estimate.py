"""`autofit estimate`: what one configuration needs."""

from __future__ import annotations

import contextlib

import click

from autofit import api
from autofit.cli.backend import Backend
from autofit.cli.options import BATCH_SIZE, CONV_ALGO, GPU, JSON, KNOBS, MODEL, QUIET
from autofit.settings import resolve_settings

_METHODS = ("simulate",)


@click.command()
@MODEL
@BATCH_SIZE
@CONV_ALGO
@KNOBS
@GPU
@click.option(
    "--method",
    type=click.Choice(_METHODS),
    default=_METHODS[0],
    help="simulate: trace a step on a GPU that is not there, replay it through PyTorch's allocator.",
)
@QUIET
@JSON
@click.pass_obj
def estimate(
    backend: Backend,
    /,
    batch_size: int,
    method: str,  # noqa: ARG001 - there is one
    quiet: bool,
    as_json: bool,
    **given: str | None,
) -> None:
    """Predict what one configuration needs.

    No GPU is needed. Without --gpu an sm_80 card is likely, and the interval spans all architectures.
    """
    settings = resolve_settings(given, {}, None)
    settings.one_conv_algo("an estimate")
    workload = api.refer(settings.model, settings)
    with contextlib.ExitStack() as stack:
        from autofit.cli.output import stderr
        from autofit.cli.progress import ProgressLine
        from autofit.service.events import ignore

        emit = ignore if quiet else stack.enter_context(ProgressLine(stderr()))
        answer = backend.estimate(settings, workload, batch_size, emit)
    if as_json:
        click.echo(answer.to_json())
        return
    from autofit.cli.estimate_text import print_estimate

    print_estimate(answer, settings)
