"""`autofit estimate`: what one configuration needs."""

from __future__ import annotations

import contextlib
import json

import click

from autofit import api
from autofit.cli.backend import Backend
from autofit.cli.options import BATCH_SIZE, CONV_ALGO, GPU, JSON, KNOBS, MODEL, QUIET
from autofit.settings import resolve_settings

_SIMULATE, _SUMMARY = "simulate", "summary"


@click.command()
@MODEL
@BATCH_SIZE
@CONV_ALGO
@KNOBS
@GPU
@click.option(
    "--method",
    type=click.Choice((_SIMULATE, _SUMMARY)),
    default=_SIMULATE,
    help="simulate: trace a step on a GPU that is not there, replay it through PyTorch's allocator. "
    "summary: add up the layers' outputs as torchsummary does, and tell why a real step differs.",
)
@click.option("--what-if", "asks_what_if", is_flag=True, help="Rank what would save memory at this batch.")
@QUIET
@JSON
@click.pass_obj
def estimate(
    backend: Backend,
    /,
    *,
    batch_size: int,
    method: str,
    asks_what_if: bool,
    quiet: bool,
    as_json: bool,
    **given: str | None,
) -> None:
    """Predict what one configuration needs.

    No GPU is needed. Without --gpu an sm_80 card is likely, and the interval spans all architectures.
    """
    settings = resolve_settings(given, {}, None)
    settings.one_conv_algo("an estimate")
    workload = api.refer(settings.model, input_shape=settings.input_shape, num_classes=settings.num_classes)
    summarized = levers = None
    with contextlib.ExitStack() as stack:
        from autofit.cli.output import stderr
        from autofit.cli.progress import ProgressLine
        from autofit.service.events import ignore

        emit = ignore if quiet else stack.enter_context(ProgressLine(stderr()))
        if method == _SUMMARY:
            summarized = backend.summarize(settings, workload, batch_size, emit)
        if asks_what_if:
            levers = backend.what_if(settings, workload, batch_size, emit)
        if summarized is not None:
            answer = summarized.estimate
        elif levers is not None:
            answer = levers.base
        else:
            answer = backend.estimate(settings, workload, batch_size, emit)
    if as_json:
        document = answer.to_dict() if summarized is None else summarized.to_dict()
        document["method"] = method
        if levers is not None:
            document["what_if"] = levers.to_dict()
        click.echo(json.dumps(document, indent=2))
        return
    if summarized is not None:
        from autofit.cli.summary_text import print_summary

        print_summary(summarized)
    else:
        from autofit.cli.estimate_text import print_estimate

        print_estimate(answer, settings)
    if levers is not None:
        from autofit.cli.what_if_text import print_what_if

        print_what_if(levers)
