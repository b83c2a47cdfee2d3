"""Where a study is kept: a journal file or a database, and what its failures mean to the user."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from autofit.errors import StorageError, UsageError
from autofit.paths import studies_dir

JOURNAL_SUFFIX = ".journal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """An open storage.

    Attributes:
        where: the file or URL as messages show it, without a password.
        errors: what its library raises when the storage fails.
    """

    backend: BaseStorage
    where: str
    errors: tuple[type[Exception], ...]

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Turns the library's errors into `StorageError`."""
        try:
            yield
        except self.errors as error:
            raise _storage_error(self.where, error) from error

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Makes each of the steps taken meanwhile one that no other process can come between.

        They are anyway, but in SQLite: it has no `SELECT … FOR UPDATE`, by which Optuna looks before
        it writes, so that two processes would both win the step of a trial to RUNNING.
        """
        engine = self.backend.engine if isinstance(self.backend, RDBStorage) else None
        if engine is None or engine.dialect.name != "sqlite":
            yield
            return
        from sqlalchemy import event

        event.listen(engine, "begin", _begin_immediately)
        try:
            yield
        finally:
            event.remove(engine, "begin", _begin_immediately)

    def close(self) -> None:
        if isinstance(self.backend, RDBStorage):
            self.backend.remove_session()
            self.backend.engine.dispose()


def open_storage(storage: str | None, study_name: str) -> Storage:
    """Opens a storage, creating it where it is missing.

    Args:
        storage: a database URL of SQLAlchemy's form, or the path of a journal file, whose name ends
            in `.journal`; by default the study's own journal in the state directory.
        study_name: names that journal.

    Raises:
        UsageError: for neither a URL nor such a path.
        StorageError: when it cannot be opened or written.
    """
    if storage is None:
        return _open_journal(studies_dir() / f"{study_name}{JOURNAL_SUFFIX}")
    if "://" in storage:
        return _open_database(storage)
    if storage.endswith(JOURNAL_SUFFIX):
        return _open_journal(Path(storage).expanduser())
    raise UsageError(
        f"no study can be kept in {storage!r}: give a database URL such as sqlite:///studies.db, or a file "
        f"whose name ends in {JOURNAL_SUFFIX}"
    )


def _open_journal(path: Path) -> Storage:
    try:
        _require_journal(path)
        _drop_torn_line(path)
        backend = JournalStorage(_JournalFile(path))
    except OSError as error:
        raise _storage_error(str(path), error) from error
    except (ValueError, LookupError, TypeError) as error:
        raise StorageError(
            f"{path} is no study journal, or damaged; move it away or choose another"
        ) from error
    return Storage(backend=backend, where=str(path), errors=(OSError, OptunaError))


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
        with path.open("rb") as file:
            first_line = file.readline()
        if first_line.endswith(b"\n") and "op_code" not in json.loads(first_line):
            raise ValueError("the first line is no operation of a journal")


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


def _open_database(url: str) -> Storage:
    from sqlalchemy.engine import make_url  # a third of a second that a journal does without
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

    try:
        where = make_url(url).render_as_string(hide_password=True)
        backend = RDBStorage(url)
    except (ArgumentError, NoSuchModuleError, ValueError, LookupError) as error:
        raise UsageError(
            f"the storage is no database URL: {_first_line(error)}; give one such as sqlite:///studies.db"
        ) from error
    except ImportError as error:
        missing = error.__cause__ or error
        raise StorageError(f"{where} needs a database driver: {missing}; install it") from error
    except (SQLAlchemyError, OptunaError, OSError, RuntimeError) as error:
        raise _storage_error(where, error) from error
    return Storage(backend=backend, where=where, errors=(OSError, OptunaError, SQLAlchemyError))


def _begin_immediately(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _storage_error(where: str, error: Exception) -> StorageError:
    return StorageError(
        f"no study can be kept in {where}: {_reason(error)}; make it writable, or choose another place "
        "with --storage"
    )


def _reason(error: BaseException) -> str:
    """The database's or the system's own words, without the layers that were put around them."""
    if isinstance(error, OptunaError) and error.__cause__ is not None:
        return _reason(error.__cause__)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return _first_line(getattr(error, "orig", None) or error)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keeps Optuna's news, such as that a study was created, off stderr; warnings still show."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
