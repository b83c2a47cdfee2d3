from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autofit.errors import StorageError, UsageError


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder that nobody may write to, not even the tests' own user when that is root."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    shutil.rmtree(folder)


@contextlib.contextmanager
def no_room_beyond(path: Path, num_bytes: int) -> Iterator[None]:
    """A disk that is full as soon as the file has grown by so much: the system refuses the write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_default_is_a_journal_of_the_studys_name_in_the_state_directory(
    open_study: Any, state_dir: Path
) -> None:
    open_study(name="davenet")
    assert (state_dir / "studies" / "davenet.journal").stat().st_size > 0


def test_a_read_only_folder_is_a_storage_error(open_study: Any, read_only_folder: Path) -> None:
    with pytest.raises(StorageError, match=r"mine.journal: Permission denied.*--storage") as refused:
        open_study(storage=str(read_only_folder / "mine.journal"))
    assert refused.value.exit_code == 5


@pytest.fixture
def read_only_copy(read_only_folder: Path) -> Callable[[Path], Path]:
    """Copies a file into the read-only folder."""

    def copy(path: Path) -> Path:
        user = os.geteuid()
        os.seteuid(os.getuid())
        read_only_folder.chmod(0o755)
        copied = Path(shutil.copy(path, read_only_folder))
        copied.chmod(0o444)
        read_only_folder.chmod(0o555)
        os.seteuid(user)
        return copied

    return copy


@pytest.fixture
def written_study(open_study: Any, outcome_of: Any, storage: str) -> str:
    """The storage of a study with one outcome."""
    with open_study(storage=storage) as study:
        ask = study.ask()
        study.tell(ask.trial_number, outcome_of(ask, 100))
    return storage


def test_a_read_only_study_can_be_read_but_not_continued(
    open_study: Any, written_study: str, read_only_copy: Callable[[Path], Path]
) -> None:
    path = read_only_copy(Path(written_study.removeprefix("sqlite:///")))
    with open_study(storage=str(path) if path.suffix == ".journal" else f"sqlite:///{path}") as study:
        assert study.num_trials == 1
        with pytest.raises(StorageError, match=r"Permission denied|readonly database") as refused:
            study.ask()
    assert "\n" not in str(refused.value)


def test_a_state_directory_that_cannot_be_made_is_a_storage_error(
    open_study: Any, read_only_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(read_only_folder / "state"))
    with pytest.raises(StorageError, match="Permission denied"):
        open_study()


@pytest.mark.parametrize("share", [0.0, 0.05, 0.95])
@pytest.mark.parametrize("told_again", [True, False])
def test_a_full_disk_leaves_a_study_that_goes_on_once_there_is_room(
    open_study: Any, outcome_of: Any, tmp_path: Path, share: float, told_again: bool
) -> None:
    """Full at once, in the middle of the outcome, or when all but the trial's state is written."""
    path = tmp_path / "mine.journal"
    study = open_study(storage=str(path))
    first = study.ask()
    before = path.stat().st_size
    study.tell(first.trial_number, outcome_of(first, 100))
    room = int(share * (path.stat().st_size - before))
    ask = study.ask()
    with no_room_beyond(path, room), pytest.raises(StorageError, match=r"mine\.journal: File too large"):
        study.tell(ask.trial_number, outcome_of(ask, 100))
    if told_again:
        study.tell(ask.trial_number, outcome_of(ask, 100))
    study.close()
    assert open_study(storage=str(path)).num_trials == (2 if told_again or share == 0.95 else 1)


def test_a_trial_that_a_full_disk_left_open_is_asked_for_again_in_the_same_process(
    open_study: Any, outcome_of: Any, tmp_path: Path
) -> None:
    path = tmp_path / "mine.journal"
    study = open_study(storage=str(path))
    ask = study.ask()
    with no_room_beyond(path, 0):
        with pytest.raises(StorageError):
            study.tell(ask.trial_number, outcome_of(ask, 100))
        study.close()
    again = open_study(storage=str(path)).ask()
    assert (again.knobs, again.batch_size) == (ask.knobs, ask.batch_size)


def test_a_torn_last_line_is_dropped(open_study: Any, outcome_of: Any, tmp_path: Path) -> None:
    """As a machine leaves it that went down in the middle of a write."""
    path = tmp_path / "mine.journal"
    study = open_study(storage=str(path))
    ask = study.ask()
    study.tell(ask.trial_number, outcome_of(ask, 100))
    study.close()
    with path.open("a") as file:
        file.write('{"op_code":5,"worker_id":"x","tr')
    reopened = open_study(storage=str(path))
    assert reopened.num_trials == 1
    reopened.ask()
    reopened.close()
    assert open_study(storage=str(path)).num_trials == 1


@pytest.mark.parametrize("content", ["hello\n", "{}\n", "[1]\n"])
def test_a_file_that_is_no_journal_is_left_alone(open_study: Any, tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.journal"
    path.write_text(content)
    with pytest.raises(StorageError, match="is not a study journal, or it is damaged"):
        open_study(storage=str(path))
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("storage", "error", "message"),
    [
        ("somewhere", UsageError, "database URL such as sqlite:///studies.db or .*, or a file"),
        ("oracle-of-delphi://x", UsageError, "is not a valid database URL"),
        ("postgresql://host:port/x", UsageError, "is not a valid database URL"),
        ("sqlite:////nowhere/at/all.db", StorageError, "unable to open database file"),
    ],
)
def test_a_storage_that_cannot_be_opened_says_why(
    open_study: Any, storage: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as refused:
        open_study(storage=storage)
    assert "\n" not in str(refused.value)


def test_a_study_that_is_deleted_meanwhile_is_a_storage_error(
    open_study: Any, outcome_of: Any, storage: str
) -> None:
    """By another process with `--fresh`."""
    study = open_study(storage=storage)
    ask = study.ask()
    open_study(storage=storage, fresh=True)
    with pytest.raises(StorageError, match="deleted, or started over with --fresh"):
        study.tell(ask.trial_number, outcome_of(ask, 100))
        study.ask()
