"""`autofit schema`: prints the JSON Schema of a document that a command prints with `--json`."""

from __future__ import annotations

import json

import click
from click.shell_completion import CompletionItem

from autofit.cli.interruption import print_document
from autofit.errors import UsageError, did_you_mean

_FIRST = "autofit."


def _names() -> dict[str, str]:
    """Schema of each document, such as `autofit.tune/1`, by its short name, such as `tune`."""
    from autofit.answers.schemas.documents import DOCUMENTS

    return {schema.removeprefix(_FIRST).partition("/")[0]: schema for schema in DOCUMENTS}


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in _names() if name.startswith(incomplete)]


@click.command()
@click.argument("name", required=False, shell_complete=_complete)
def schema(name: str | None) -> None:
    """Print the JSON Schema of a document.

    NAME is that of a document of --json, such as tune or autofit.tune/1. Without it the names are listed.
    The schema is complete: documents within the document are in its $defs.
    """
    names = _names()
    if name is None:
        width = max(map(len, names))
        for short, whole in names.items():
            click.echo(f"{short:{width}}  {whole}")
        return
    from autofit.answers.schemas.json_schema import file_stem, published

    for short, whole in names.items():
        if name in (short, whole, file_stem(whole), whole.removeprefix(_FIRST)):
            print_document(json.dumps(published(file_stem(whole)), indent=1, ensure_ascii=False))
            return
    raise UsageError(
        f"{name!r} is no document of autofit: `autofit schema` lists them.{did_you_mean(name, names)}"
    )
