"""`autofit compare`: compares the forward passes of several models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from autofit.cli.interruption import print_document
from autofit.cli.options.shared import (
    BATCH_SIZE,
    GPU,
    ISOLATION,
    JSON,
    QUIET,
    SAMPLE,
    SEQ_LEN,
    WARM,
    complete_model,
)
from autofit.errors import UsageError
from autofit.settings.resolve import resolve_settings
from autofit.settings.workloads import refer

if TYPE_CHECKING:
    from autofit.cli.backend import Backend


@click.command()
@click.argument("models", nargs=-1, metavar="MODEL MODEL …", shell_complete=complete_model)
@BATCH_SIZE
@SAMPLE
@ISOLATION
@SEQ_LEN
@GPU
@click.option("--all", "show_all", is_flag=True, help="List every tensor, not only the largest.")
@WARM
@QUIET
@JSON
@click.pass_obj
def compare(  # noqa: PLR0917 - click passes them by name
    backend: Backend,
    /,
    models: tuple[str, ...],
    batch_size: int,
    show_all: bool,
    quiet: bool,
    as_json: bool,
    **given: str | None,
) -> None:
    """Compare the tensors and outputs of several models.

    Lists every tensor of an inference pass with its elements and bytes, and which tensors are views, which
    take no memory of their own. Predicts the peaks; no GPU is needed. Runs all models once on the CPU, with
    the parameters of the first model where names and shapes match, to compare their outputs.
    """
    if len(models) < 2:
        raise UsageError(f"compare needs at least two models, got {len(models)}: name another one")
    settings = resolve_settings({**given, "model": models[0]}, {}, None)
    workloads = [refer(model, settings) for model in models]
    from autofit.cli.text.progress import progress

    with progress(quiet=quiet) as emit:
        comparison = backend.compare(settings, workloads, batch_size, emit)
    if as_json:
        print_document(comparison.to_json())
        return
    from autofit.answers.configuration.compare import compare_sections
    from autofit.cli.text.sections import print_sections

    print_sections(compare_sections(comparison, show_all=show_all))
