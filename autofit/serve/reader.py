"""Reads a storage repeatedly, and emits changes of its contents as events.

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
from autofit.events import EventSink, JobsCounted, UnreadableCounted
from autofit.jobs.queue import JOBS_STUDY, JobQueue
from autofit.jobs.signing import storage_key
from autofit.paths import studies_dir
from autofit.serve.background import Log
from autofit.serve.job_reader import JobReader
from autofit.serve.study_reader import StudyReader
from autofit.study.damage import DAMAGED, Kind, Unreadable, UnreadableError
from autofit.study.journal import JOURNAL_SUFFIX
from autofit.study.search_record import OPENED, SearchRecord
from autofit.study.storage import Storage, open_storage, quiet_optuna
from autofit.tuning import earlier_answers

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_IDLE_SECONDS = 120.0
_NUM_TURNS = 20
_NUM_ANSWERS = 50  # stored answers that one read checks, each once: it takes milliseconds


class StorageReader:
    """Reads a storage again and again, and emits events for new trials, studies and jobs.

    A study is the stored record of a search. A journal file that has not changed is not read. In a database,
    a study without running trials and without changes for 120 seconds is read only every twentieth time, and
    immediately when a search opens it.

    Args:
        storage: database URL, or path of a journal.
        emit: called with each event.
        log: called with a sentence about a record that cannot be read.
        clock: returns seconds that never decrease.
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
        self._opened_as: dict[str, tuple[Any, ...]] = {}
        self._unreadable: dict[str, Unreadable] = {}  # studies and stored answers, by name
        self._job_reader = JobReader()
        self._looked_at: set[tuple[str, int]] = set()  # stored answers that were checked
        self._answers_left_aside: set[str] = set()
        self._said: set[str] = set()
        self._counted: collections.Counter[str] = collections.Counter()
        self._read_state: tuple[int, ...] | None = None
        self._num_reads = 0

    def read(self) -> None:
        """Emits events for what is new in the storage since the last read.

        Raises:
            UsageError: the storage is invalid, or its key in the environment is too short.
            StorageError: the storage cannot be read now; the readable news were emitted.
        """
        state = self._state()
        if state is None or state != self._read_state:
            self._read_state = None
            with quiet_optuna():
                self._read(self._opened())
            self._read_state = state
        for study in self._studies.values():
            study.announce()
        self._count_unreadable()

    def close(self) -> None:
        """Closes the storage, which frees memory; a later `read` opens it again."""
        if self._storage is not None:
            self._storage.close()
        self._storage = self._jobs = None

    def end(self) -> None:
        """Closes a storage that was deleted, and emits events that end all its running trials."""
        self.close()
        for name in list(self._studies):
            self._forget(name)
        self._unreadable, self._job_reader = {}, JobReader()
        self._count_unreadable()

    @property
    def has_unfinished(self) -> bool:
        """Whether a study of the storage has running trials."""
        return any(study.has_unfinished for study in self._studies.values())

    def _state(self) -> tuple[int, ...] | None:
        """Inode, size and mtime of a journal, to notice changes; None for a database.

        Raises:
            StorageError: the file is missing. Reading does not create it: a misspelt path would look
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
            key = storage_key()
            self._storage = open_storage(self._where, JOBS_STUDY)
            self._jobs = JobQueue(self._storage, url=self._where, key=key)
        return self._storage

    def _read(self, storage: Storage) -> None:
        """Reads the studies that are due, and the jobs, and emits events for what is new."""
        backend = storage.backend
        with storage.guard():
            attributes, answers = self._list(backend, storage.where)
            for name in self._opened_as.keys() - attributes.keys():
                self._forget(name)
            for name, found in attributes.items():
                opened_as = (found.get(OPENED), DAMAGED in found)
                if name != JOBS_STUDY and self._opened_as.get(name) != opened_as:
                    self._opened_as[name] = opened_as
                    self._open_study(backend, name, found)
                if name in self._studies:
                    self._studies[name].hear(found)
            for name in list(self._due()):
                self._read_study(backend, name)
            if JOBS_STUDY in attributes:
                self._read_jobs()
            self._look_at_answers(backend, answers)
        self._num_reads += 1

    def _list(self, backend: BaseStorage, where: str) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
        """Studies in the storage: those of searches and of the job queue, and those that hold answers.

        Returns:
            Two values: the attributes of the former by name, and the ids of the studies that hold answers by
            name.
        """
        try:
            studies = backend.get_all_studies()
        except ValueError as error:
            raise StorageError(f"{where} is damaged: {error}") from error
        answers = {
            study.study_name: study._study_id  # noqa: SLF001 - Optuna's storages are addressed by it
            for study in studies
            if earlier_answers.is_answer(study.study_name, study.user_attrs)
        }
        attributes = {
            study.study_name: study.user_attrs
            for study in studies
            if study.study_name == JOBS_STUDY or SearchRecord.is_search(study.user_attrs)
        }
        return {name: found for name, found in attributes.items() if name not in answers}, answers

    def _open_study(self, backend: BaseStorage, name: str, attributes: dict[str, Any]) -> None:
        """Begins to read a study that is new, was made anew, or whose search was resumed."""
        try:
            record = SearchRecord.of(attributes)
        except UnreadableError as error:
            self._leave_aside(name, Unreadable.of(Kind.STUDY, f"study {name}", error))
            return
        self._unreadable.pop(name, None)
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
        """Yields the names of the studies that are to be read this time."""
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
        except KeyError:  # the study was deleted after it was listed
            self._forget(name)
            return
        if has_news:
            self._changed_at[name] = self._clock()

    def _forget(self, name: str) -> None:
        self._opened_as.pop(name, None)
        self._unreadable.pop(name, None)
        if name in self._studies:
            self._studies.pop(name).end()
            del self._changed_at[name]

    def _read_jobs(self) -> None:
        """Emits the numbers of jobs by state; logs jobs and answers that cannot be read."""
        assert self._jobs is not None
        self._job_reader.read(self._jobs)
        self._emit(JobsCounted(by_state=self._job_reader.by_state()))
        for left_aside in self._job_reader.unreadable:
            self._say(left_aside)
        for job in self._job_reader.take_over(_NUM_ANSWERS):
            if (error := job.damage) is not None:
                name = f"the answer of job {job.job_id}"
                self._leave_aside(f"{job.job_id} (job)", Unreadable.of(Kind.ANSWER, name, error))

    def _look_at_answers(self, backend: BaseStorage, answers: dict[str, int]) -> None:
        """Logs and counts stored answers that cannot be read; checks at most 50 new ones in a call.

        Args:
            answers: ids of the studies that hold answers, by name.
        """
        for name in self._answers_left_aside - answers.keys():  # replaced by newer answers
            self._answers_left_aside.discard(name)
            self._unreadable.pop(name, None)
        new = [found for found in answers.items() if found not in self._looked_at]
        for name, study_id in new[:_NUM_ANSWERS]:
            self._looked_at.add((name, study_id))
            self._unreadable.pop(name, None)
            try:
                earlier_answers.require_readable(backend, study_id)
            except UnreadableError as error:
                self._answers_left_aside.add(name)
                self._leave_aside(name, Unreadable.of(Kind.ANSWER, f"the answer in study {name}", error))
            except KeyError:  # the study was deleted after it was listed
                continue

    def _leave_aside(self, name: str, left_aside: Unreadable) -> None:
        self._unreadable[name] = left_aside
        self._say(left_aside)

    def _say(self, left_aside: Unreadable) -> None:
        """Logs an unreadable record when it is found for the first time."""
        if str(left_aside) not in self._said:
            self._said.add(str(left_aside))
            self._log(str(left_aside))

    def _count_unreadable(self) -> None:
        counted = collections.Counter(
            left.kind.value for left in (*self._unreadable.values(), *self._job_reader.unreadable)
        )
        if trials := sum(study.num_unreadable for study in self._studies.values()):
            counted[Kind.TRIAL.value] += trials
        if counted != self._counted:
            self._counted = counted
            self._emit(UnreadableCounted(source=self._where, by_kind=counted))


class DirectoryReader:
    """Reads all journals of the state directory, where each study has its own journal.

    Args:
        emit, log: see `StorageReader`.
    """

    def __init__(self, *, emit: EventSink, log: Log) -> None:
        self._emit = emit
        self._log = log
        self._journals: dict[Path, StorageReader] = {}
        self._unreadable: dict[Path, str] = {}

    def read(self) -> None:
        """Emits what is new in all journals; an unreadable journal is logged once and skipped.

        Raises:
            StorageError: the folder cannot be read.
        """
        paths = set(studies_dir().glob(f"*{JOURNAL_SUFFIX}"))
        for path in self._journals.keys() - paths:
            self._journals.pop(path).end()
            self._mend(path)
        for path in sorted(paths):
            reader = self._journals.get(path)
            if reader is None:
                reader = self._journals[path] = StorageReader(str(path), emit=self._emit, log=self._log)
            self._read(path, reader)

    def close(self) -> None:
        for journal in self._journals.values():
            journal.close()

    def _read(self, path: Path, reader: StorageReader) -> None:
        """Reads one journal; one that cannot be read is logged once and counted."""
        try:
            reader.read()
        except StorageError as error:
            reader.close()
            if self._unreadable.get(path) != error.message:
                self._unreadable[path] = error.message
                self._log(f"{error.message}; it is skipped")
                self._emit(UnreadableCounted(source=f"{path} as a whole", by_kind={Kind.STUDY: 1}))
            return
        self._mend(path)
        if not reader.has_unfinished:
            reader.close()

    def _mend(self, path: Path) -> None:
        if self._unreadable.pop(path, None) is not None:
            self._emit(UnreadableCounted(source=f"{path} as a whole", by_kind={}))


def reader_of(storage: str | None, *, emit: EventSink, log: Log) -> StorageReader | DirectoryReader:
    """Makes the reader of a storage or, for None, of all journals in the state directory."""
    if storage is None:
        return DirectoryReader(emit=emit, log=log)
    return StorageReader(storage, emit=emit, log=log)


def _file_of(storage: str) -> Path | None:
    """Path of the file of a journal or an SQLite database; None for a database server."""
    if "://" not in storage:
        return Path(storage).expanduser() if storage.endswith(JOURNAL_SUFFIX) else None
    scheme, _, rest = storage.partition(":///")
    is_file = scheme.partition("+")[0] == "sqlite" and rest and not rest.startswith((":memory:", "file:"))
    return Path(rest.partition("?")[0]) if is_file else None
