"""Storages of studies, which are journal files or databases, and errors for their failures."""

from __future__ import annotations

import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from optuna.exceptions import OptunaError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState

from autofit.errors import StorageDeniedError, StorageError, UsageError
from autofit.paths import studies_dir, studies_path
from autofit.study.journal import JOURNAL_SUFFIX, open_journal
from autofit_workers.spec.errors import text_of
from autofit_workers.spec.shown import brief, redacted_place

if TYPE_CHECKING:
    from autofit.study.relations import Relations

WAIT_SECONDS = 60.0

_NOT_FOUND = "Record does not exist."  # message of Optuna's storages for a missing study or trial
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


def _never(_error: BaseException | None) -> bool:
    return False


class Storage:
    """Open storage of studies (the records of searches): a journal file or a database.

    Args:
        backend: Optuna's storage.
        where: file or URL for messages, without a password.
        errors: exceptions that the storage's library raises when the storage fails.
        passes: takes such an error, and returns whether the operation may succeed if it is repeated later.
        denies: takes such an error, and returns whether the user lacks the right for the operation.
        wait_seconds: seconds for which `run` repeats an operation while the storage cannot be reached.
    """

    def __init__(
        self,
        *,
        backend: BaseStorage,
        where: str,
        errors: tuple[type[Exception], ...],
        passes: Callable[[BaseException | None], bool] = _never,
        denies: Callable[[BaseException | None], bool] = _never,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.backend = backend
        self.where = where
        self._errors = errors
        self._passes = passes
        self._denies = denies
        self._wait_seconds = wait_seconds

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Context manager that turns errors of the storage's library within the block into `StorageError`."""
        try:
            yield
        except self._errors as error:
            if self._denies(error):
                raise StorageDeniedError(
                    f"{self.where} does not allow its user to do this: {_reason(error)}; see the roles in "
                    "deploy/README.md"
                ) from error
            raise storage_error(self.where, error) from error
        except KeyError as error:
            if error.args != (_NOT_FOUND,):
                raise
            raise StorageError(
                f"the study in {self.where} is gone: it was deleted, or started over with --fresh, in the "
                "meantime; run the same command again"
            ) from error

    def run(self, operation: Callable[[], _Result]) -> _Result:
        """Runs a function that reads or writes the storage; repeats it while the storage cannot be reached.

        Args:
            operation: function without arguments. It must be safe to run again, whether or not the writes of
                a failed run were kept.

        Raises:
            StorageError: the storage failed for good, or could not be reached for `wait_seconds`. After such
                a wait every later operation is tried only once, so that the end of a search does not wait
                again.
        """
        pause_seconds = _FIRST_PAUSE_SECONDS
        until: float | None = None
        while True:
            try:
                with self.guard():
                    result = operation()
            except StorageError as error:
                if not self._passes(error.__cause__):
                    raise
                if until is None:
                    until = time.monotonic() + self._wait_seconds
                    self._say_lost(error)
                if time.monotonic() >= until:
                    raise self._given_up(error) from error.__cause__
            else:
                if until is not None:
                    _log.warning("%s answers again", self.where)
                return result
            time.sleep(min(pause_seconds * random.uniform(0.5, 1.0), max(until - time.monotonic(), 0.0)))  # noqa: S311
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Context manager that makes each transaction within the block atomic among processes.

        Only SQLite needs this: it lacks the `SELECT … FOR UPDATE` with which Optuna reads before it
        writes, so two processes could both set the same trial to RUNNING.
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

    def trials_with(self, study_id: int, name: str, values: Collection[str]) -> list[FrozenTrial]:
        """Trials of a study whose attribute `name` has one of the values, by age; no others are read."""
        if isinstance(self.backend, RDBStorage):
            return cast("Relations", self.backend).trials_with(study_id, name, values)
        trials = self.backend.get_all_trials(study_id, deepcopy=False)  # a journal is in memory
        return [trial for trial in trials if trial.user_attrs.get(name) in values]

    def trials_one_by_one(self, study_id: int, state: TrialState) -> Iterator[FrozenTrial]:
        """Yields the trials of a study in a state, oldest first; each is read when it is asked for."""
        if isinstance(self.backend, RDBStorage):
            for trial_id in cast("Relations", self.backend).trial_ids(study_id, (state,)):
                trial = self.backend.get_trial(trial_id)
                if trial.state is state:
                    yield trial
            return
        yield from self.backend.get_all_trials(study_id, deepcopy=False, states=(state,))

    def trial_states(self, study_id: int) -> dict[int, TrialState]:
        """States of a study's trials by the trials' ids, ascending; nothing else of the trials is read.

        A state that cannot be read is that of a failed trial, as a damaged trial is.
        """
        if isinstance(self.backend, RDBStorage):
            return cast("Relations", self.backend).trial_states(study_id)
        trials = self.backend.get_all_trials(study_id, deepcopy=False)
        return {trial._trial_id: trial.state for trial in trials}  # noqa: SLF001 - as in `Relations`

    def trials_at(self, study_id: int, trial_ids: Sequence[int]) -> Iterator[FrozenTrial]:
        """Yields the trials of a study that have these ids, oldest first."""
        if isinstance(self.backend, RDBStorage):
            yield from cast("Relations", self.backend).trials_at(study_id, trial_ids)
            return
        wanted = set(trial_ids)
        for trial in self.backend.get_all_trials(study_id, deepcopy=False) if wanted else ():
            if trial._trial_id in wanted:  # noqa: SLF001 - as in `Relations`
                yield trial

    def close(self) -> None:
        if isinstance(self.backend, RDBStorage):
            self.backend.remove_session()
            self.backend.engine.dispose()

    def _say_lost(self, error: StorageError) -> None:
        if self._wait_seconds > 0:
            reason = _reason(error.__cause__ or error)
            _log.warning(
                "%s cannot be reached (%s): trying again for %.0f s", self.where, reason, self._wait_seconds
            )

    def _given_up(self, error: StorageError) -> StorageError:
        waited_seconds, self._wait_seconds = self._wait_seconds, 0.0
        return StorageError(
            f"{self.where} could not be reached for {waited_seconds:.0f} s: "
            f"{_reason(error.__cause__ or error)}; nothing in it is lost: make sure that it runs, and run "
            "the same command again"
        )


def open_storage(storage: str | None, study_name: str, *, wait_seconds: float = WAIT_SECONDS) -> Storage:
    """Opens a storage; creates it if it is missing.

    Args:
        storage: a database URL of SQLAlchemy's form, or the path of a journal file, whose name ends
            in `.journal`; by default the study's own journal in the state directory.
        study_name: name of the study, and of its default journal.
        wait_seconds: seconds for which later operations are repeated while the storage cannot be reached. The
            first connection is tried only once.

    Raises:
        UsageError: `storage` is neither a URL nor such a path.
        StorageError: the storage cannot be opened or written.
    """
    if storage is not None and not is_journal(storage):
        return _open_database(storage, wait_seconds)
    path = journal_path(storage, study_name)
    if storage is None:
        studies_dir()  # creates the folder
    try:
        backend = open_journal(path)
    except OSError as error:
        raise storage_error(str(path), error) from error
    return Storage(backend=backend, where=str(path), errors=(OSError, OptunaError))


def is_journal(storage: str | None) -> bool:
    """Whether a storage is a journal file, rather than a database; see `open_storage`."""
    return storage is None or "://" not in storage


def journal_path(storage: str | None, study_name: str) -> Path:
    """Path of the journal file that `storage` names, even if the file is missing; see `open_storage`."""
    if storage is None:
        return studies_path() / f"{study_name}{JOURNAL_SUFFIX}"
    if storage.endswith(JOURNAL_SUFFIX):
        try:
            return Path(storage).expanduser()
        except RuntimeError as error:
            raise UsageError(f"a study cannot be kept in {storage}: {error}") from error
    where = redacted_place(storage)
    raise UsageError(
        f"a study cannot be kept in {where!r}: give a database URL such as sqlite:///studies.db or "
        f"postgresql://user@host:5432/studies, or a file whose name ends in {JOURNAL_SUFFIX}"
    )


def _open_database(storage: str, wait_seconds: float) -> Storage:
    """Storage in a database; raises an error that says whether it cannot be reached or cannot be used."""
    from autofit.study import database

    url = database.parse_url(storage)
    where = database.shown(url)
    try:
        backend = database.open_database(url)
    except (*database.ERRORS, RuntimeError) as error:
        if database.passes(error):
            raise _unreachable(where, error) from error
        raise storage_error(where, error) from error
    return Storage(
        backend=backend,
        where=where,
        errors=database.ERRORS,
        passes=database.passes,
        denies=database.denies,
        wait_seconds=wait_seconds,
    )


def _unreachable(where: str, error: BaseException) -> StorageError:
    return StorageError(
        f"{where} cannot be reached: {_reason(error)}; make sure that the server runs and that this machine "
        "may connect to it, or choose another place with --storage"
    )


def _begin_immediately(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def storage_error(where: str, error: BaseException) -> StorageError:
    """`StorageError` for a failure of a storage, with advice for the user on the next step."""
    return StorageError(
        f"a study cannot be kept in {where}: {_reason(error)}; make it writable, or choose another place "
        "with --storage"
    )


def _reason(error: BaseException) -> str:
    """Message of the database or the operating system, without the exceptions that wrap it."""
    if isinstance(error, OptunaError) and error.__cause__ is not None:
        return _reason(error.__cause__)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    error = getattr(error, "orig", None) or error
    return brief(text_of(error) or type(error).__name__)


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Hides Optuna's log messages below warnings while the block runs."""
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
