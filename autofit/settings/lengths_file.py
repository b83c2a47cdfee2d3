"""Reads the lengths of a dataset's samples: `--lengths FILE`, or `FILE:COLUMN` of a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from autofit.errors import did_you_mean
from autofit.settings.lengths import BatchLengths, worst_case_lengths
from autofit_workers.spec.documents import read_file

_MOST_BYTES = 1 << 30
_MOST_SHOWN = 200  # characters of a name
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def lengths(value: Any) -> BatchLengths:
    """Sample lengths of a dataset, from the value of the option `lengths`.

    Args:
        value: name of a file, as `read_lengths` takes it, or a `BatchLengths`, which is returned unchanged.

    Raises:
        ValueError: the file cannot be read, see `read_lengths`.
    """
    return value if isinstance(value, BatchLengths) else read_lengths(str(value))


def read_lengths(text: str) -> BatchLengths:
    """Sample lengths in tokens, read from a file.

    Args:
        text: `FILE` with one number a line, or `FILE:COLUMN` of a CSV, TSV, JSONL or Parquet table. A column
            holds numbers, or lists such as `input_ids`, whose lengths count.

    Raises:
        ValueError: there is no such file or column, or it holds something else.
    """
    try:
        path, column = _path_and_column(text)
        what, values = ("row", _column(path, column)) if column else ("line", _lines(path))
        numbered = enumerate(values, start=1)
        counts = [_length(value, f"{what} {number}") for number, value in numbered if column or value]
    except OSError as error:
        raise ValueError(f"{text[:_MOST_SHOWN]} cannot be read: {error.strerror or error}") from error
    if not counts:
        raise ValueError(f"{path} is empty: give a number of tokens on each line")
    return worst_case_lengths(counts)


def _path_and_column(text: str) -> tuple[Path, str]:
    if Path(text).exists() or ":" not in text:
        return Path(text), ""
    path, _, column = text.rpartition(":")
    return Path(path), column


def _lines(path: Path) -> list[str]:
    if path.suffix in (*_DELIMITERS, ".jsonl", ".parquet"):
        raise ValueError(f"{path} is a table: name its column, as in {path}:input_ids")
    return [line.strip() for line in _text_lines(path)]


def _text_lines(path: Path) -> io.StringIO:
    """Lines of a text file, as a stream; they end at LF, CR and CR LF, but not at other Unicode line ends."""
    return io.StringIO(read_file(path, _MOST_BYTES).decode("utf-8", errors="replace"), newline=None)


def _column(path: Path, column: str) -> Iterable[Any]:
    if path.suffix == ".parquet":
        return _of_parquet(path, column)
    delimiter = _DELIMITERS.get(path.suffix)
    rows = _table(path, delimiter) if delimiter else _json_rows(path)
    return [_cell(row, column, path) for row in rows]


def _table(path: Path, delimiter: str) -> Iterator[Any]:
    before = csv.field_size_limit(_MOST_BYTES)  # a cell may hold a whole text
    try:
        yield from csv.DictReader(_text_lines(path), delimiter=delimiter)
    except csv.Error as error:
        raise ValueError(f"{path} is no table that can be read: {error}") from error
    finally:
        csv.field_size_limit(before)


def _json_rows(path: Path) -> Iterator[Any]:
    for number, line in enumerate(_text_lines(path), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} of {path} is no JSON: expected an object a line") from error


def _cell(row: Any, column: str, path: Path) -> Any:
    if not isinstance(row, dict) or column not in row:
        names = tuple(row) if isinstance(row, dict) else ()
        raise ValueError(f"{path} has no column {column!r}.{did_you_mean(column, names)}")
    return row[column]


def _of_parquet(path: Path, column: str) -> Iterable[Any]:
    """Values of a column of a Parquet file; raises `ValueError` if the file has none."""
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError as error:
        raise ValueError(f"{path} needs pyarrow: pip install pyarrow, or give a text file") from error
    try:
        names = parquet.read_schema(path).names
        if column not in names:
            raise ValueError(f"{path} has no column {column!r}.{did_you_mean(column, tuple(names))}")
        values: list[Any] = parquet.read_table(path, columns=[column])[column].to_pylist()
    except ArrowException as error:
        raise ValueError(f"{path} is no Parquet file") from error
    return values


def _length(value: Any, place: str) -> int:
    if isinstance(value, list):
        return max(1, len(value))
    text = str(value).strip()
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise ValueError(f"{place}, {text[:40]!r}, is no number of tokens: expected 1 or more")
    return int(text)
