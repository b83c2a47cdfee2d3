"""What a storage holds, read again and again, as events.

The storage is the only source: a reader that starts later emits the same trials, each once.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofit.errors import StorageError
from autofit.events import EventSink, JobsCounted
from autofit.jobs.queue import JOBS_STUDY, JobQueue
from autofit.paths import studies_dir
from autofit.serve.background import Log
from autofit.serve.study_reader import UNREADABLE, StudyReader
from autofit.study.journal import JOURNAL_SUFFIX
from autofit.study.search_record import OPENED, SearchRecord
from autofit.study.storage import Storage, open_storage, quiet_optuna

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_IDLE_SECONDS = 120.0
_NUM_TURNS = 20


class StorageReader:
    """Reads one storage.

    A journal that has not grown is not read. In a database, a study without unfinished trials in
    which nothing happened for a while is looked at in turns: at every twentieth read, and at once
    when a coordinator opens it.

    Args:
        storage: a database URL, or the path of a journal.
        emit: takes the events.
        log: takes a sentence about what cannot be read.
        clock: seconds that only grow.
    """

    def __init__(
        self, storage: str, *, emit: EventSink, log: Log, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._where = storage
        self._file = _file_of(storage)
        self._is_journal = storage.endswith(JOURNAL_SUFFIX) and "://" not in storage
        self._emit = emit
        self._log = log
        self._clock = clock
        self._storage: Storage | None = None
        self._jobs: JobQueue | None = None
        self._studies: dict[str, StudyReader] = {}
        self._changed_at: dict[str, float] = {}
        self._opened_as: dict[str, dict[str, Any]] = {}
        self._read_state: tuple[int, ...] | None = None
        self._num_reads = 0

    def read(self) -> None:
        """Emits what is new since the last time.

        Raises:
            UsageError: there can be no such storage.
            StorageError: it cannot be read now; what could be read was emitted.
        """
        state = self._state()
        if state is None or state != self._read_state:
            self._read_state = None
            with quiet_optuna():
                self._read(self._opened())
            self._read_state = state
        for study in self._studies.values():
            study.announce()

    def close(self) -> None:
        """Releases the storage and what it keeps in memory; a later read opens it again."""
        if self._storage is not None:
            self._storage.close()
        self._storage = self._jobs = None

    def end(self) -> None:
        """Closes it for good: the storage has been deleted."""
        self.close()
        for name in list(self._studies):
            self._forget(name)

    @property
    def has_unfinished(self) -> bool:
        """Whether a study has trials that are not over."""
        return any(study.has_unfinished for study in self._studies.values())

    def _state(self) -> tuple[int, ...] | None:
        """What changes with every line of a journal; None for a database, which has nothing like it.

        Raises:
            StorageError: there is no such file. Reading creates none: a misspelt path would look
                like an empty storage for ever.
        """
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError as error:
            raise StorageError(f"{self._file} cannot be read: {error.strerror}") from error
        return (found.st_ino, found.st_size, found.st_mtime_ns) if self._is_journal else None

    def _opened(self) -> Storage:
        if self._storage is None:
            if self._file is not None and not os.access(self._file, os.R_OK):
                raise StorageError(f"{self._file} cannot be read: Permission denied")
            self._storage = open_storage(self._where, JOBS_STUDY)
            self._jobs = JobQueue(self._storage, url=self._where)
        return self._storage

    def _read(self, storage: Storage) -> None:
        backend = storage.backend
        with storage.guard():
            attributes = self._list(backend, storage.where)
            for name in self._opened_as.keys() - attributes.keys():
                self._forget(name)
            for name, found in attributes.items():
                if name != JOBS_STUDY and self._opened_as.get(name) != found[OPENED]:
                    self._opened_as[name] = found[OPENED]
                    self._open_study(backend, name, found)
                if name in self._studies:
                    self._studies[name].hear(found)
            for name in list(self._due()):
                self._read_study(backend, name)
            if JOBS_STUDY in attributes:
                self._read_jobs()
        self._num_reads += 1

    def _list(self, backend: BaseStorage, where: str) -> dict[str, dict[str, Any]]:
        """The attributes of the studies that searches or jobs are kept in."""
        try:
            studies = backend.get_all_studies()
        except ValueError as error:
            raise StorageError(f"{where} is damaged: {error}") from error
        return {
            study.study_name: study.user_attrs
            for study in studies
            if study.study_name == JOBS_STUDY or SearchRecord.is_search(study.user_attrs)
        }

    def _open_study(self, backend: BaseStorage, name: str, attributes: dict[str, Any]) -> None:
        """Makes a reader for a study that is new, begun anew or taken up again."""
        try:
            record = SearchRecord.of(attributes)
        except UNREADABLE as error:
            self._log(f"study {name} is not counted: another version of autofit wrote it ({error!r})")
            return
        study_id = backend.get_study_id_from_name(name)
        study = self._studies.get(name)
        if study is not None and not study.is_same(backend, study_id):
            study.end()
            study = None
        if study is None:
            study = StudyReader(backend, study_id, name, record, emit=self._emit, log=self._log)
        self._studies[name] = study
        seconds_ago = max(time.time() - record.opened.opened_seconds, 0.0)
        self._changed_at[name] = self._clock() - seconds_ago
        study.open(record)

    def _due(self) -> Iterator[str]:
        """The studies to look at this time."""
        now = self._clock()
        for index, (name, study) in enumerate(self._studies.items()):
            is_old = now - self._changed_at[name] > _IDLE_SECONDS
            is_idle = study.was_read and is_old and not study.has_unfinished
            if self._is_journal or not is_idle or (index + self._num_reads) % _NUM_TURNS == 0:
                yield name

    def _read_study(self, backend: BaseStorage, name: str) -> None:
        study = self._studies[name]
        try:
            has_news = study.read(backend)
        except KeyError:  # it was deleted since it was listed
            self._forget(name)
            return
        if has_news:
            self._changed_at[name] = self._clock()

    def _forget(self, name: str) -> None:
        self._opened_as.pop(name, None)
        if name in self._studies:
            self._studies.pop(name).end()
            del self._changed_at[name]

    def _read_jobs(self) -> None:
        assert self._jobs is not None
        states = collections.Counter(job.state.value for job in self._jobs.records())
        self._emit(JobsCounted(by_state=states))


class DirectoryReader:
    """Reads the journals of the state directory, where every study has one of its own.

    Args:
        emit, log: see `StorageReader`.
    """

    def __init__(self, *, emit: EventSink, log: Log) -> None:
        self._emit = emit
        self._log = log
        self._journals: dict[Path, StorageReader] = {}
        self._unreadable: dict[Path, str] = {}

    def read(self) -> None:
        """Emits what is new in any journal; one that cannot be read is said once, and left aside.

        Raises:
            StorageError: the folder cannot be read.
        """
        paths = set(studies_dir().glob(f"*{JOURNAL_SUFFIX}"))
        for path in self._journals.keys() - paths:
            self._journals.pop(path).end()
        for path in sorted(paths):
            reader = self._journals.get(path)
            if reader is None:
                reader = self._journals[path] = StorageReader(str(path), emit=self._emit, log=self._log)
            self._read(path, reader)

    def close(self) -> None:
        for journal in self._journals.values():
            journal.close()

    def _read(self, path: Path, reader: StorageReader) -> None:
        try:
            reader.read()
        except StorageError as error:
            reader.close()
            if self._unreadable.get(path) != error.message:
                self._unreadable[path] = error.message
                self._log(f"{error.message}; it is skipped")
            return
        self._unreadable.pop(path, None)
        if not reader.has_unfinished:
            reader.close()


def reader_of(storage: str | None, *, emit: EventSink, log: Log) -> StorageReader | DirectoryReader:
    """The reader of a storage, see `open_storage`; None means the journals of the state directory."""
    if storage is None:
        return DirectoryReader(emit=emit, log=log)
    return StorageReader(storage, emit=emit, log=log)


def _file_of(storage: str) -> Path | None:
    """The file that a journal or SQLite keeps everything in; None for a server."""
    if "://" not in storage:
        return Path(storage).expanduser() if storage.endswith(JOURNAL_SUFFIX) else None
    scheme, _, rest = storage.partition(":///")
    is_file = scheme.partition("+")[0] == "sqlite" and rest and not rest.startswith((":memory:", "file:"))
    return Path(rest.partition("?")[0]) if is_file else None
