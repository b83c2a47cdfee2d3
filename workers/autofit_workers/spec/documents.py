"""Reads files, compressed data, JSON and TOML from others, within limits of size and depth.

    a file's bytes, packed or unpacked        MOST_BYTES, unless its reader says less
    members of gzip data                      MOST_MEMBERS
    memory of a JSON document, estimated      MOST_JSON_MEMORY_BYTES, or MOST_GROWTH times its text
    JSON's and TOML's nesting                 MOST_LEVELS
    whole numbers                             64 bits, with a sign
    other numbers                             finite
    bytes of TOML                             MOST_TOML_BYTES, unless its reader says more
    dots in one line of TOML                  MOST_DOTS
    seconds that a pipe may be silent         PIPE_SECONDS

Reading a file of ten megabytes takes less than half a gigabyte and a few seconds, whatever it holds. Every
reader of files, answers and records that may come from elsewhere uses this module.
"""

from __future__ import annotations

import errno
import io
import itertools
import json
import math
import os
import select
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from autofit_workers.spec.pythons import read_toml

MOST_BYTES = 48 << 20
MOST_MEMBERS = 64
MOST_JSON_MEMORY_BYTES = 320 << 20
MOST_GROWTH = 24  # a trace of many passes grows by 20 when it is read
MOST_TOML_BYTES = 1 << 18
MOST_DOTS = 256
MOST_LEVELS = 64
PIPE_SECONDS = 5.0

_MOST_INTEGER = (1 << 63) - 1
# Bytes that CPython takes for an object of one member, a list of one, and a number or a short text.
_OBJECT_BYTES, _LIST_BYTES, _VALUE_BYTES = 240, 96, 64
_WIDEST_BYTES = 4  # bytes of a character in a text that has one beyond U+FFFF
_DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 19
_ZLIB_OR_GZIP = 47  # zlib's own number for "either, by the header"


class DocumentError(ValueError):
    """A document is malformed or beyond a limit.

    The message is a predicate, such as "is truncated", to follow the document's name.
    """


class LimitError(DocumentError):
    """A document is larger, or nests deeper, than the limits allow."""


def read_file(
    path: str | os.PathLike[str], most_bytes: int = MOST_BYTES, *, pipe_seconds: float = PIPE_SECONDS
) -> bytes:
    """Content of a file or of a pipe that another process writes to.

    Args:
        path: the file.
        most_bytes: largest number of bytes that is read.
        pipe_seconds: longest time to wait for data of a pipe.

    Raises:
        OSError: the file cannot be read, is a device, is larger than `most_bytes`, or is a pipe that is
            silent for `pipe_seconds`; `strerror` says why.
    """
    content = bytearray()
    with _opened(path) as file:
        found = os.fstat(file.fileno())
        if (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)) and not file.isatty():
            raise OSError(errno.EINVAL, "it is a device")
        may_wait = not stat.S_ISREG(found.st_mode)
        if not may_wait and found.st_size > most_bytes:
            raise _too_large(most_bytes)
        while len(content) <= most_bytes:
            if may_wait and not _has_more(file, pipe_seconds):
                raise TimeoutError(errno.ETIMEDOUT, f"nothing was written to it for {pipe_seconds:g} s")
            chunk = file.read(1 << 20)
            if not chunk:
                return bytes(content)
            content += chunk
    raise _too_large(most_bytes)


def _too_large(most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {most_bytes >> 10:,} KiB")


def _has_more(file: io.FileIO, seconds: float) -> bool:
    """Whether the file has data to read, or ends, within `seconds`."""
    waiting = select.poll()  # takes any descriptor; `select` none from 1024 on
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(1000 * seconds))


def resolved(path: str | os.PathLike[str]) -> Path:
    """Absolute path without links, whether the file exists or not.

    Raises:
        OSError: links form a cycle, no file can have the name, or the current folder is gone.
    """
    try:
        return Path(path).resolve()
    except RuntimeError as error:  # until Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
    except ValueError as error:
        raise _impossible(error) from error


def _impossible(error: ValueError) -> OSError:
    """`OSError` for an invalid path: one with a NUL, or with half of a surrogate pair."""
    return OSError(errno.EINVAL, f"no file can have that name ({error})")


def _opened(path: str | os.PathLike[str]) -> io.FileIO:
    try:
        return io.FileIO(os.fspath(path), opener=_without_waiting)
    except ValueError as error:
        raise _impossible(error) from error


def _without_waiting(path: str, flags: int) -> int:
    """Descriptor of a file opened without waiting, even for a pipe that has no writer yet."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def inflate(data: bytes, most_bytes: int = MOST_BYTES) -> bytes:
    """Decompresses gzip data (also of several gzip members in a row) or zlib data.

    Args:
        data: the compressed bytes.
        most_bytes: largest number of bytes that the content may have.

    Raises:
        DocumentError: `data` is not such data, is cut off or damaged, or its content is too large.
    """
    content, rest = b"", data
    for _ in range(MOST_MEMBERS):
        inflater = zlib.decompressobj(wbits=_ZLIB_OR_GZIP)
        try:
            content += inflater.decompress(rest, most_bytes + 1 - len(content))
        except zlib.error as error:
            raise DocumentError("is damaged") from error
        if len(content) > most_bytes:
            raise LimitError(f"grows beyond {most_bytes >> 20} MiB")
        if not inflater.eof:
            raise DocumentError("is truncated")
        rest = inflater.unused_data
        if not rest:
            return content
    raise LimitError(f"has more than {MOST_MEMBERS} members")


def parse_json(text: str | bytes) -> Any:
    """Parses a JSON text; `?` replaces unpaired surrogates, which could not be written as UTF-8 again.

    Raises:
        DocumentError: `text` is not JSON, or is beyond a limit of size, depth or memory.
    """
    data = text.encode(errors="replace") if isinstance(text, str) else text
    may_have_halves = b"\\ud" in data or b"\\uD" in data
    _require_affordable(data, times=2 if may_have_halves else 1)
    parse_integer = _integer if _MANY_DIGITS in data.translate(_DIGITS_AS_ZEROS) else None
    try:
        text = data.decode().removeprefix("\ufeff")
        value = json.loads(text, parse_int=parse_integer, parse_float=_finite, parse_constant=_finite)
    except RecursionError as error:
        raise _too_deep() from error
    except DocumentError:
        raise
    except ValueError as error:
        raise DocumentError(f"is no JSON ({error})") from error
    for _ in _levels(value):
        pass
    if may_have_halves:
        value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    return value


def _require_affordable(data: bytes, *, times: int) -> None:
    """Raises `LimitError` if a JSON text, parsed `times` times, would take too much memory.

    The estimate counts punctuation, before anything is parsed.
    """
    if len(data) > MOST_BYTES:
        raise LimitError(f"is larger than {MOST_BYTES >> 20} MiB")
    text_bytes = len(data) * (1 if data.isascii() and times == 1 else 2 * _WIDEST_BYTES)
    num_objects, num_lists, num_values = map(data.count, (b"{", b"[", b","))
    made_bytes = num_objects * _OBJECT_BYTES + num_lists * _LIST_BYTES + num_values * _VALUE_BYTES
    most_bytes = MOST_JSON_MEMORY_BYTES
    if text_bytes <= most_bytes:
        most_bytes = max(most_bytes, MOST_GROWTH * len(data))
    if text_bytes + times * made_bytes > most_bytes:
        raise LimitError("has more values than any document of autofit")


def parse_toml(data: str | bytes, most_bytes: int = MOST_TOML_BYTES) -> dict[str, Any]:
    """Parses a TOML text.

    Args:
        data: the text.
        most_bytes: most characters that the text may have.

    Raises:
        UnicodeDecodeError: `data` is not UTF-8.
        DocumentError: `data` is not TOML, or beyond a limit.
    """
    text = data if isinstance(data, str) else data.decode()
    if len(text) > most_bytes:
        raise LimitError(f"is larger than {most_bytes >> 10} KiB")
    # tomllib's time grows with the square of a key's parts; only `\n` ends a line, and with it a key.
    if any(line.count(".") > MOST_DOTS for line in text.split("\n")):
        raise LimitError(f"has a line with more than {MOST_DOTS} dots")
    try:
        value = read_toml(text)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise DocumentError(f"is not TOML ({error})") from error
    for each in itertools.chain.from_iterable(_levels(value)):
        for child in _children(each):
            if isinstance(child, int):
                _require_small(child)
            elif isinstance(child, float):
                _finite(child)
    return value


def _integer(digits: str) -> int:
    if len(digits) > len(str(-_MOST_INTEGER)):
        raise DocumentError("has a whole number of more than 64 bits")
    return _require_small(int(digits))


def _require_small(number: int) -> int:
    if abs(number) > _MOST_INTEGER:
        raise DocumentError("has a whole number of more than 64 bits")
    return number


def _finite(number: str | float) -> float:
    if not math.isfinite(value := float(number)):
        raise DocumentError("has a number that is not finite")
    return value


def _levels(value: Any) -> Iterator[list[Any]]:
    """Yields, for each depth of nesting, all objects and lists of a document at that depth.

    Raises:
        LimitError: the document nests deeper than `MOST_LEVELS`.
    """
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_LEVELS):
        if not level:
            return
        yield level
        level = [child for each in level for child in _children(each) if type(child) in (dict, list)]
    if level:
        raise _too_deep()


def _children(value: Any) -> Iterable[Any]:
    return value.values() if type(value) is dict else value


def _too_deep() -> LimitError:
    return LimitError(f"nests more than {MOST_LEVELS} levels deep")
