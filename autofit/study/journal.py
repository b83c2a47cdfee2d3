"""Studies in a journal file, which survives a full disk and a machine that goes down."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from autofit.errors import StorageError
from workers.documents import parse_json

JOURNAL_SUFFIX = ".journal"


def open_journal(path: Path) -> JournalStorage:
    """Opens a journal, creating it where it is missing.

    Raises:
        StorageError: the file is no journal.
        OSError: it cannot be read or written.
    """
    try:
        _require_journal(path)
        _drop_torn_line(path)
        return JournalStorage(_JournalFile(path))
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError) as error:
        raise StorageError(
            f"{path} is not a study journal, or it is damaged: move it away or choose another file"
        ) from error


class _JournalFile(JournalFileBackend):
    """A journal that a full disk leaves readable, so that the study goes on once there is room."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            super().append_logs(logs)
        except OSError:
            _drop_torn_line(self._path)
            raise


def _require_journal(path: Path) -> None:
    """Raises `ValueError` for a file that is not Optuna's, before anything is written to it."""
    if path.exists():
        if not path.is_file():  # a pipe would be waited for
            raise OSError(errno.EINVAL, "it is no file")
        with path.open("rb") as file:
            first_line = file.readline()
        if first_line.endswith(b"\n") and "op_code" not in parse_json(first_line):
            raise ValueError("the first line is not an operation of a journal")


def _drop_torn_line(path: Path) -> None:
    """Cuts off a last line that a full disk or a kill left unfinished.

    Optuna would append to it, and could read nothing from there on.
    """
    if not path.exists() or _whole_size(path) == path.stat().st_size:
        return
    lock = JournalFileSymlinkLock(str(path))
    lock.acquire()
    try:
        with path.open("r+b") as file:
            file.truncate(_whole_size(path))
    finally:
        lock.release()


def _whole_size(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1
