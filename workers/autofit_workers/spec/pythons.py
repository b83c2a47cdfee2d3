"""Differences between Python 3.10 and later ones, in one place, so that other modules are written once.

`Self` is in typing_extensions too, which PyTorch requires; tomli is what became `tomllib`.
`tracing/recording/bindings.py` alone knows more of Pythons' differences: the names of their instructions.
"""

from __future__ import annotations

import dis
import sys
from types import CodeType
from typing import Any

if sys.version_info >= (3, 11):
    from enum import StrEnum
    from typing import Self
else:
    from enum import Enum

    from typing_extensions import Self

    class StrEnum(str, Enum):
        """Enumeration whose members are texts, and are shown as these."""

        __str__ = str.__str__


__all__ = [
    "SQLITE_BUSY",
    "SQLITE_CORRUPT",
    "SQLITE_LOCKED",
    "Self",
    "StrEnum",
    "arguments_for",
    "handled_parts",
    "read_toml",
    "sqlite_code",
]

SQLITE_BUSY, SQLITE_LOCKED, SQLITE_CORRUPT = 5, 6, 11  # of SQLite's C interface
# First words of SQLite's messages (`sqlite3ErrStr` in main.c, `corruptSchema` in prepare.c).
_SQLITE_MESSAGES = {
    "database is locked": SQLITE_BUSY,
    "database table is locked": SQLITE_LOCKED,
    "database disk image is malformed": SQLITE_CORRUPT,
    "malformed database schema": SQLITE_CORRUPT,
}
_WITHOUT_THE_FOLDER = "import sys; sys.path[:] = filter(None, sys.path)\n"


def read_toml(text: str) -> dict[str, Any]:
    """Values of a TOML text.

    Raises:
        ValueError: `text` is not TOML.
        ModuleNotFoundError: Python is 3.10, and tomli is not installed.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    read: dict[str, Any] = tomllib.loads(text)
    return read


def arguments_for(code: str) -> list[str]:
    """Arguments of Python that run code, without the working folder on its import path."""
    if sys.version_info >= (3, 11):
        return ["-P", "-c", code]
    return ["-c", _WITHOUT_THE_FOLDER + code]


def sqlite_code(error: Exception) -> int:
    """Primary result code of an error of `sqlite3`: one of `SQLITE_…` above, or any other number.

    Python 3.10 keeps the message alone; SQLite has no translations of it.
    """
    if sys.version_info >= (3, 11):
        return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
    return _code_of_message(str(error))


def _code_of_message(text: str) -> int:
    return next((code for words, code in _SQLITE_MESSAGES.items() if text.startswith(words)), 0)


def handled_parts(code: CodeType) -> list[range]:
    """Offsets of instructions whose exceptions are handled in the code itself, by `try` or `with`.

    Up to Python 3.10 a `try` begins with an instruction that names its handler, which follows the body; an
    `else` between them counts as the body.
    """
    if sys.version_info >= (3, 11):
        read: Any = dis.Bytecode(code)
        return [range(entry.start, entry.end) for entry in read.exception_entries]
    # An instruction that only sets annotations up has no end.
    begun = (each for each in dis.get_instructions(code) if each.opname.startswith("SETUP_"))
    return [range(each.offset, each.argval) for each in begun if each.argval is not None]
