"""Opens studies in a database: its URL, its connections, and its temporary failures.

SQLAlchemy takes a third of a second to import, and a journal does not need it: import this module
only where the storage is a database.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from optuna.exceptions import OptunaError
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import NullPool

from autofit.errors import StorageError, UsageError
from autofit.study.relations import Relations
from autofit_workers.spec.pythons import SQLITE_BUSY, SQLITE_LOCKED, sqlite_code
from autofit_workers.spec.shown import redacted_place

ERRORS = (OSError, OptunaError, SQLAlchemyError)

_PSYCOPG = "postgresql+psycopg"
_DRIVERS = {"postgresql": _PSYCOPG, "postgres": _PSYCOPG}
_EXTRAS = {"psycopg": "pip install -c constraints.txt '.[postgres]', in autofit's checkout"}
_POSTGRESQL: dict[str, Any] = {
    # Checks each connection before its use, as it may have died while a trial ran.
    "pool_pre_ping": True,
    "pool_recycle": 1800,
    "pool_size": 2,
    "max_overflow": 4,
    "connect_args": {
        "connect_timeout": 10,
        "application_name": "autofit",
        # Limits on waiting for a host that is gone; without them a read waits for two hours.
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,  # milliseconds
    },
}
_LOCK = 0x6175746F666974  # "autofit"
_NUM_TRIES = 10  # tries to create tables without a lock; each may lose a race against another process
# Temporary errors of a server that is busy, goes down or comes up: SQLSTATE classes and codes of
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_PASSING_STATES = ("08", "25006", "40", "53300", "57P01", "57P02", "57P03", "57P05")
_DENIED_STATE = "42501"  # insufficient_privilege


def parse_url(url: str) -> URL:
    """Parses a database URL; `postgresql://` stands for the driver psycopg 3.

    Raises:
        UsageError: `url` is no database URL. The message does not repeat it, as it may hold a password.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise _no_url() from error
    # An unescaped @ in a password puts its end into the host or database name, which messages show.
    if "@" in f"{parsed.host or ''}{parsed.database or ''}":
        raise _no_url()
    return parsed.set(drivername=_DRIVERS.get(parsed.drivername, parsed.drivername))


def _no_url() -> UsageError:
    return UsageError(
        "the storage is not a valid database URL: give one such as sqlite:///studies.db or "
        "postgresql://user@host:5432/studies, with %40 for an @ in a password"
    )


def shown(url: URL) -> str:
    """Text of a database URL for messages: as users write it, without the password."""
    visible = url.set(drivername=url.drivername.removesuffix("+psycopg"))
    return redacted_place(visible.render_as_string(hide_password=False))


def open_database(url: URL) -> Relations:
    """Connects to a database; creates Optuna's tables if they are missing.

    Raises:
        UsageError: SQLAlchemy does not know the kind of database.
        StorageError: the driver is not installed.
        OSError, OptunaError, SQLAlchemyError: the database cannot be reached or written.
    """
    try:
        with _alone(url):
            return _opened(url)
    except NoSuchModuleError as error:
        raise UsageError(
            f"SQLAlchemy does not know the kind of database in the storage's URL ({url.drivername}): give "
            "one such as sqlite:///studies.db or postgresql://user@host:5432/studies"
        ) from error
    except ImportError as error:
        missing = error.__cause__ or error
        how = _EXTRAS.get(getattr(missing, "name", None) or "", "install it")
        raise StorageError(f"{shown(url)} needs a database driver: {missing}; {how}") from error


@contextlib.contextmanager
def _alone(url: URL) -> Iterator[None]:
    """Holds a lock on a PostgreSQL server, so that only one process at a time creates a database's tables."""
    if url.drivername != _PSYCOPG:
        yield
        return
    engine = create_engine(url, poolclass=NullPool, connect_args=_POSTGRESQL["connect_args"])
    with engine.connect() as connection:  # its end releases the lock
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _LOCK})
        yield


def _opened(url: URL) -> Relations:
    options = {**_POSTGRESQL} if url.drivername == _PSYCOPG else {}
    for _ in range(_NUM_TRIES - 1):
        try:
            return Relations(url.render_as_string(hide_password=False), engine_kwargs=options)
        except SQLAlchemyError as error:
            if not _is_made_by_others(error):
                raise
            time.sleep(random.uniform(0.05, 0.3))  # noqa: S311
    return Relations(url.render_as_string(hide_password=False), engine_kwargs=options)


def _is_made_by_others(error: SQLAlchemyError) -> bool:
    """Whether creating a table, type or row failed because another process had created it."""
    return isinstance(error, IntegrityError) or (
        isinstance(error, DBAPIError) and "already exists" in str(error.orig)
    )


def passes(error: BaseException | None) -> bool:
    """Whether a failure of a storage is likely to pass, such as a lost connection or a busy database."""
    while error is not None:
        if isinstance(error, PoolTimeoutError):
            return True
        if isinstance(error, DBAPIError):
            return error.connection_invalidated or _is_passing(error.orig)
        error = error.__cause__ or error.__context__
    return False


def denies(error: BaseException | None) -> bool:
    """Whether an operation failed because the database's user lacks the right to do it."""
    while error is not None:
        if isinstance(error, DBAPIError):
            return str(getattr(error.orig, "sqlstate", "")) == _DENIED_STATE
        error = error.__cause__ or error.__context__
    return False


def _is_passing(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return sqlite_code(error) in (SQLITE_BUSY, SQLITE_LOCKED)
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return str(state).startswith(_PASSING_STATES)
    # A failed connection attempt has no state, and neither has a silent server.
    return type(error).__name__ in ("OperationalError", "InterfaceError", "ConnectionTimeout")
