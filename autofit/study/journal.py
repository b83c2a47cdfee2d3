"""Studies in a journal file that survives a full disk, a crash of the machine, and damaged lines.

Optuna replays a journal from its beginning, and numbers records in the order of their creation. A skipped
line would shift the ids of later records. A damaged line is therefore searched for the id of its record, and
the record is kept with a mark.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from optuna.exceptions import OptunaError, StorageInternalError
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from autofit.errors import StorageError
from autofit.study.damage import DAMAGED, UNREADABLE
from autofit_workers.spec.documents import parse_json

JOURNAL_SUFFIX = ".journal"

# Operations of Optuna's journals by the fields that only each of them has; earlier entries win.
_CREATE_STUDY, _DELETE_STUDY, _MARK_STUDY, _CREATE_TRIAL, _MARK_TRIAL, _DISCARD = 0, 1, 2, 4, 8, 10
_BY_FIELDS = (
    ({"study_name"}, _CREATE_STUDY),
    ({"study_id", "user_attr"}, _MARK_STUDY),
    ({"study_id", "system_attr"}, 3),
    ({"trial_id", "user_attr"}, _MARK_TRIAL),
    ({"trial_id", "system_attr"}, 9),
    ({"trial_id", "param_name"}, 5),
    ({"trial_id", "intermediate_value"}, 7),
    ({"trial_id", "state"}, 6),
    ({"study_id", "datetime_start"}, _CREATE_TRIAL),
    ({"trial_id"}, _MARK_TRIAL),
    ({"study_id"}, _DELETE_STUDY),
)
_FIELD = re.compile(r'"(\w+)":(?:(\d{1,9})(?=[,}])|"([\w.-]{1,128})")?')
_NOBODY = {"worker_id": ""}
_MAXIMIZE = StudyDirection.MAXIMIZE.value
_START = '{"op_code":'
_DAMAGE = (*UNREADABLE, AssertionError)

_log = logging.getLogger(__name__)


def open_journal(path: Path) -> JournalStorage:
    """Opens a journal, Optuna's storage in a file with a line for each change; creates a missing file.

    Raises:
        StorageError: the file is no journal.
        OSError: the file cannot be read or written.
    """
    try:
        _require_journal(path)
        _drop_torn_line(path)
        return _Journal(_JournalFile(path))
    except (*UNREADABLE, AssertionError, OptunaError) as error:
        raise StorageError(
            f"{path} is not a study journal, or it is damaged: move it away or choose another file"
        ) from error


class _Journal(JournalStorage):
    """Optuna's storage in a journal file, made robust: a damaged line affects only one study or trial."""

    def _sync_with_backend(self) -> None:
        replayed = self._replay_result
        for operation in self._backend.read_logs(replayed.log_number_read):
            number = replayed.log_number_read + 1
            try:
                _require_sound(operation)
                replayed.apply_logs((operation,))
            except _DAMAGE:
                if isinstance(operation, dict) and operation.get("worker_id") == replayed.worker_id:
                    raise  # an invalid operation of this process
                self._apply_remains(operation)
                replayed.log_number_read = number

    def _apply_remains(self, operation: Any) -> None:
        """Marks the study or trial that a damaged operation belongs to as damaged.

        If the operation would have created it, it is created, so that later ones keep their numbers.
        """
        replayed = self._replay_result
        fields = operation if isinstance(operation, dict) else _fields(str(operation))
        code = _by_fields(fields)
        study, trial = _id(fields.get("study_id")), _id(fields.get("trial_id"))
        if code == _CREATE_STUDY:
            name = fields.get("study_name")
            if not isinstance(name, str):
                raise StorageInternalError("the name of a study is damaged, and which it was cannot be told")
            replayed.apply_logs(
                ({"op_code": code, **_NOBODY, "study_name": name, "directions": [_MAXIMIZE]},)
            )
        elif code == _CREATE_TRIAL:
            created = {**_created(fields), "study_id": study}
            if study in replayed._study_id_to_trial_ids:  # noqa: SLF001 - no public function lists the ids
                replayed.apply_logs((created,))
            else:  # later trials keep their ids
                number = len(replayed._trials)  # noqa: SLF001
                replayed._trials[number] = create_trial(state=TrialState.FAIL, user_attrs={DAMAGED: True})  # noqa: SLF001
        elif trial is not None:
            mark = {"op_code": _MARK_TRIAL, **_NOBODY, "trial_id": trial, "user_attr": {DAMAGED: True}}
            replayed.apply_logs((mark,))
        elif study is not None:
            mark = {"op_code": _MARK_STUDY, **_NOBODY, "study_id": study, "user_attr": {DAMAGED: True}}
            replayed.apply_logs((mark,))
        else:
            _log.warning("a damaged line of a study journal is left out: whose it is cannot be told")


def _require_sound(operation: Any) -> None:
    """Raises `ValueError` for an entry of the journal whose operation code and fields do not match."""
    if not isinstance(operation, dict):
        raise ValueError("it is no operation")  # noqa: TRY004 - the file's fault
    attributes = (
        operation.get(name, {}) for name in ("user_attr", "system_attr", "user_attrs", "system_attrs")
    )
    if not all(isinstance(given, dict) for given in attributes):
        raise ValueError("its attributes are none")
    code = operation["op_code"]
    if code != _DISCARD and code != _by_fields(operation):
        raise ValueError("it has the fields of another operation")


def _by_fields(fields: Iterable[str]) -> int | None:
    """Code of the journal operation with exactly the given fields; None if there is none."""
    names = set(fields)
    return next((code for needed, code in _BY_FIELDS if needed <= names), None)


def _fields(line: str) -> dict[str, Any]:
    """Fields found in a damaged journal line, by name; values are a number, a text or None."""
    found: dict[str, Any] = {}
    for name, number, text in _FIELD.findall(line):
        found.setdefault(name, int(number) if number else text or None)
    return found


def _created(fields: dict[str, Any]) -> dict[str, Any]:
    """Operation that creates a trial, rebuilt from the readable fields of a damaged journal line.

    If the trial's state is lost, it is created as failed.
    """
    state = fields.get("state")
    known = isinstance(state, int) and state in [each.value for each in TrialState]
    attributes = fields.get("user_attrs")
    return {
        "op_code": _CREATE_TRIAL,
        **_NOBODY,
        "datetime_start": None,
        "state": state if known else TrialState.FAIL.value,
        "user_attrs": {**(attributes if isinstance(attributes, dict) else {}), DAMAGED: True},
    }


def _id(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class _JournalFile(JournalFileBackend):
    """Journal file that stays readable when the disk is full; writing continues once there is room."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._read_to = (0, 0)  # number of lines that were read, and the byte at which they end

    def read_logs(self, log_number_from: int) -> Generator[Any, None, None]:
        """Yields the journal's operations after the first `log_number_from`; damaged lines as plain text.

        A last line that another process is still writing is left for the next call.
        """
        number, place = self._read_to if self._read_to[0] == log_number_from else (0, 0)
        with self._path.open("rb") as file:
            file.seek(place)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                number, place = number + 1, place + len(line)
                self._read_to = number, place
                if number > log_number_from:
                    yield _operation(line)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        try:
            super().append_logs(logs)
        except OSError:
            _drop_torn_line(self._path)
            raise


def _operation(line: bytes) -> Any:
    text = line.decode("utf-8", "replace")
    try:
        return parse_json(line.decode())
    except ValueError:
        # A process killed while writing left half an operation, which no process has read, at the beginning
        # of the line; the operation of another process follows it.
        torn, start, whole = text.rpartition(_START)
        if torn:
            with contextlib.suppress(ValueError):
                return parse_json(start + whole)
        return text


def _require_journal(path: Path) -> None:
    """Raises `ValueError` for an existing file that is no journal, before anything is written to it."""
    if path.exists():
        if not path.is_file():  # opening a pipe would block
            raise OSError(errno.EINVAL, "it is no file")
        with path.open("rb") as file:
            first_line = file.readline()
        if first_line.endswith(b"\n") and "op_code" not in parse_json(first_line):
            raise ValueError("the first line is not an operation of a journal")


def _drop_torn_line(path: Path) -> None:
    """Cuts off the last line of a journal if a full disk or a kill left it unfinished.

    Optuna would append to the unfinished line, and could read nothing after it.
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
