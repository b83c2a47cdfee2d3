"""`autofit models` and `autofit gpus`: lists of the built-in workloads and of the cards."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from autofit.answers.schemas.names import GPUS_SCHEMA, MODELS_SCHEMA
from autofit.cli.interruption import print_document
from autofit.cli.options.shared import JSON
from autofit.errors import DriverError, UnknownGpuError, UsageError
from autofit.hardware.gpus import catalogue, find_gpu, gpus_sold_as
from autofit.units import format_bytes, parse_bytes
from autofit_workers.spec.workloads.builtins import BUILTINS

if TYPE_CHECKING:
    from autofit.cli.backend import Backend
    from autofit.hardware.gpus import Gpu, LocalGpu


_WIDTH_WITH_BYTES = 110


@click.command()
@JSON
def models(as_json: bool) -> None:
    """List the built-in workloads."""
    if as_json:
        print_list(MODELS_SCHEMA, models=_dictionaries(BUILTINS.values()))
        return
    from autofit.cli.text.output import headed, listing, styled

    table = headed(("--model", "left"), ("optimizer", "left"), ("what it is", "left"))
    for builtin in BUILTINS.values():
        table.add_row(styled(builtin.name, "bold"), builtin.optimizer, builtin.description)
        table.add_row("", "", styled(f"one sample is {builtin.sample}", "dim"))
        table.add_row("", "", styled(builtin.source, "dim"))
    console = listing()
    console.print(table)
    console.print("\nFrom installed libraries: torchvision:NAME, timm:NAME, hf:NAME-or-config")
    console.print("Your own: package.module:attribute or path/file.py:attribute")


@click.command()
@click.option("--memory", metavar="SIZE", help="Only cards sold with this much memory, such as 16G.")
@JSON
@click.pass_obj
def gpus(backend: Backend, memory: str | None, as_json: bool) -> None:
    """List the cards and their memory.

    The memory is the total that CUDA or HIP reports. The cards of this machine are marked.
    """
    cards = tuple(catalogue().values()) if memory is None else _sold_as(memory)
    local = _local(backend)
    if as_json:
        print_list(GPUS_SCHEMA, gpus=_dictionaries(cards), local=_dictionaries(local))
        return
    _print_cards(cards, local)


def _sold_as(memory: str) -> tuple[Gpu, ...]:
    try:
        return gpus_sold_as(parse_bytes(memory))
    except ValueError as error:
        raise UsageError(f"--memory: {error}") from error


def _local(backend: Backend) -> tuple[LocalGpu, ...]:
    """GPUs of this machine, as the NVIDIA driver lists them; empty, with a warning, if it does not answer."""
    try:
        return backend.local_gpus()
    except DriverError as error:
        click.echo(f"warning: {error.message}", err=True)
        return ()


def _print_cards(cards: Sequence[Gpu], local: Sequence[LocalGpu]) -> None:
    """Prints a table of GPU models with their memory; marks those of this machine."""
    from rich.text import Text

    from autofit.cli.text.output import headed, listing, styled

    console = listing()
    has_room = console.width >= _WIDTH_WITH_BYTES
    here = {key for gpu in local if (key := _key_of(gpu)) is not None}
    total = (("GiB", "right"), ("bytes", "right")) if has_room else (("GiB", "right"),)
    table = headed(
        ("--gpu", "left"), *total, ("arch", "left"), ("SMs", "right"), ("total is", "left"), ("name", "left")
    )
    for gpu in cards:
        exact = [f"{gpu.total_bytes:,}"] if has_room else []
        table.add_row(
            styled(f"{gpu.key} ◂" if gpu.key in here else gpu.key, "bold"),
            f"{gpu.total_bytes / 1024**3:.2f}",
            *exact,
            gpu.architecture,
            str(gpu.num_sms),
            gpu.provenance,
            Text(gpu.name, no_wrap=True, overflow="ellipsis"),
        )
    for column in table.columns[:-1]:
        column.no_wrap = True
    console.print(table)
    console.print(
        "\nA total is reported where a log shows it, and derived where it follows from a similar card."
    )
    for card in local:
        driver = f"driver {card.driver_version}"
        console.print(f"◂ here: {card.name}, {format_bytes(card.total_bytes)}, {card.architecture}, {driver}")


def _key_of(gpu: LocalGpu) -> str | None:
    try:
        return find_gpu(gpu.name).key
    except UnknownGpuError:
        return None


def _dictionaries(items: Iterable[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(item) for item in items]


def print_list(schema: str, **content: object) -> None:
    """Prints a JSON document with a schema and the given fields.

    Args:
        schema: name and version of the document's schema.
        content: the other fields of the document.
    """
    print_document(json.dumps({"schema": schema, **content}, indent=2, ensure_ascii=False))
