"""Prices of an hour of a card: `--price CARD=NUM`, and the files of `--prices`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from autofit.errors import UnknownGpuError, UsageError
from autofit.hardware.gpus import Gpu, find_gpu
from autofit_workers.spec.documents import DocumentError, parse_toml, read_file

_MOST_BYTES = 1 << 20
_MOST_SHOWN = 80  # characters of a value in a message


def named_prices(given: Iterable[str], gpus: Collection[Gpu]) -> dict[str, float]:
    """Price of an hour of each GPU model, by the model's key, from values of `--price` such as `t4=0.5`.

    Args:
        gpus: GPU models that the command is about.

    Raises:
        UsageError: a card is unknown, named twice or not among `gpus`, or a price is no positive number.
    """
    found: dict[str, float] = {}
    for text in given:
        name, equals, number = text.partition("=")
        price = _price(number)
        if not equals or price is None:
            raise UsageError(
                f"--price: {text!r} is no price of a card: write CARD=NUM, more than 0, as in t4=0.5"
            )
        gpu = find_gpu(name)
        if gpu not in gpus:
            raise UsageError(f"--price: {gpu.key} is not among the cards of --gpu: add it there")
        if gpu.key in found:
            raise UsageError(f"--price: {gpu.key} is named twice: give each card one price")
        found[gpu.key] = price
    return found


def read_prices(path: Path) -> dict[str, float]:
    """Price of an hour of each GPU model, by the model's key, from the file of `--prices`.

    Args:
        path: a TOML file with lines such as `t4 = 0.5`, or a CSV file with lines such as `t4,0.5`, where a
            first line `card,price` is skipped.

    Raises:
        UsageError: the file cannot be read, or a line is no price of a card of the catalogue.
    """
    lines = {".toml": _of_toml, ".csv": _of_csv}.get(path.suffix.lower())
    if lines is None:
        raise UsageError(
            f"--prices: {path} is no .toml or .csv file: write lines such as t4 = 0.5 into a .toml file (no "
            "price list comes with autofit)"
        )
    try:
        pairs = list(lines(read_file(path, _MOST_BYTES)))
    except OSError as error:
        raise UsageError(f"--prices: {path} cannot be read: {error.strerror or error}") from error
    except (DocumentError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"--prices: {path} is not what its ending says: {error}") from error
    found: dict[str, float] = {}
    for name, value in pairs:
        price = _price(value)
        if price is None:
            shown = f"{name} = {value}"[:_MOST_SHOWN]
            raise UsageError(f"--prices: {path}: {shown!r} is no price of a card: give a number above 0")
        try:
            gpu = find_gpu(name)
        except UnknownGpuError as error:
            raise UsageError(f"--prices: {path}: {error.message}") from error
        if gpu.key in found:
            raise UsageError(f"--prices: {path}: {gpu.key} is named twice: give each card one price")
        found[gpu.key] = price
    if not found:
        raise UsageError(f"--prices: {path} has no price: write lines such as t4 = 0.5")
    return found


def _of_toml(content: bytes) -> Iterator[tuple[str, Any]]:
    yield from parse_toml(content).items()


def _of_csv(content: bytes) -> Iterator[tuple[str, Any]]:
    rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
    for number, row in enumerate(rows):
        cells = [cell.strip() for cell in row]
        if not any(cells) or (number == 0 and cells == ["card", "price"]):
            continue
        yield cells[0], cells[1] if len(cells) == 2 else ",".join(cells[1:])


def _price(value: Any) -> float | None:
    """Positive number that a value of a file or an option is; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        price = float(value)
    except (ValueError, OverflowError):
        return None
    return price if 0 < price < math.inf else None
