"""Files and folders that users name, whatever they are: one sentence and a documented exit code."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from autofit.errors import StorageError
from autofit.paths import write_atomically
from autofit_workers.spec.documents import MOST_BYTES

ROOT = str(Path(__file__).parent)
COMMANDS: dict[str, Callable[[str], tuple[str, ...]]] = {
    "profile": lambda name: ("profile", "--trace", name),
    "config": lambda name: ("tune", "--config", name),
    "observe": lambda name: ("observe", name),
    "model": lambda name: ("estimate", "--batch-size", "8", "--model", f"{name}/mine.py:net"),
    "config.json": lambda name: ("estimate", "--batch-size", "8", "--model", f"hf:{name}/config.json"),
    "script": lambda name: ("estimate", "--batch-size", "8", "--script", name),
    "journal": lambda name: ("jobs", "--storage", f"{name}.journal"),
    "working dir": lambda name: (
        "submit", "--working-dir", name, "--model", "mine.py:net", "--gpu-mem", "2G",
        "--address", "http://[::1]:1",
    ),
    "submitted": lambda name: (
        "submit", "--working-dir", ROOT, "--model", f"{name}/mine.py:net", "--gpu-mem", "2G",
        "--address", "http://[::1]:1",
    ),
    "submitted file": lambda name: (
        "submit", "--working-dir", ROOT, "--model", f"{name}.py:net", "--gpu-mem", "2G",
        "--address", "http://[::1]:1",
    ),
    "submitted config.json": lambda name: (
        "submit", "--working-dir", ROOT, "--model", f"hf:{name}/config.json", "--gpu-mem", "2G",
        "--address", "http://[::1]:1",
    ),
    "report": lambda name: (
        "estimate", "--batch-size", "8", "--model", "davenet", "--report", f"{name}/r.html",
    ),
    "save": lambda name: ("profile", "--batch-size", "8", "--model", "davenet", "--save", f"{name}/p.gz"),
}  # fmt: skip


def _missing(_path: Path) -> None:
    """Nothing is there."""


KINDS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "missing": ("missing", _missing),
    "a link to itself": ("loop", lambda path: path.symlink_to(path)),
    "a link to nowhere": ("nowhere", lambda path: path.symlink_to("nothing")),
    "a name of 256 bytes": ("a" * 256, _missing),
    "undecodable bytes": ("a\udcffb", _missing),
    "of nobody": ("~nobody-of-that-name/x", _missing),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_a_file_is_said_in_one_sentence(autofit, tmp_path, command, kind, monkeypatch):
    monkeypatch.setenv("AUTOFIT_STORAGE", str(tmp_path / "jobs.journal"))
    name, make = KINDS[kind]
    path = tmp_path / name
    make(path)
    finished = autofit(*COMMANDS[command](name if name.startswith("~") else str(path)))
    if command == "journal" and finished.code == 0:  # a journal is made where there is none
        assert finished.out == "no jobs\n"
        return
    assert finished.code in (2, 5)
    assert finished.err.count("error: ") == 1
    assert "Traceback" not in finished.err


@pytest.mark.parametrize("command", ["profile", "config", "observe", "script", "report", "save"])
def test_a_folder_in_place_of_a_file_is_named(autofit, tmp_path, command):
    (tmp_path / "r.html").mkdir()
    (tmp_path / "p.gz").mkdir()
    finished = autofit(*COMMANDS[command](str(tmp_path)))
    assert finished.code in (2, 5)
    assert str(tmp_path) in finished.err.replace("\n", "")


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50 * 2**30)


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, _endless, _sparse], ids=["pipe", "folder", "device", "50 GB"]
)
@pytest.mark.parametrize(
    "command",
    [
        ("tune", "hf:{folder}/config.json"),
        ("tune", "hf:{folder}"),
        ("tune", "gpt2", "--lengths", "{folder}/config.json"),
        ("check", "--script", "{folder}/config.json", "--batch-size", "2"),
    ],
)
def test_what_is_no_configuration_is_refused_at_once(autofit, tmp_path, command, make):
    if make is os.mkfifo and "--lengths" in command:
        pytest.skip("somebody may write to a pipe of lengths yet")
    make(tmp_path / "config.json")
    finished = autofit(*(word.format(folder=tmp_path) for word in command), "--gpu", "t4")
    assert finished.code == 2
    assert finished.err.count("error: ") == 1


def test_a_report_to_a_device_is_written_to_it_and_to_a_link_to_the_file(tmp_path):
    for device in (Path("/dev/null"), Path("/dev/full")):
        before = device.stat()
        with suppress(StorageError):
            write_atomically(device, "text")
        assert stat.S_ISCHR(device.stat().st_mode)
        assert device.stat().st_ino == before.st_ino
    with pytest.raises(StorageError, match="No space left"):
        write_atomically(Path("/dev/full"), "text")
    (tmp_path / "link").symlink_to("file")
    write_atomically(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="cannot write"):
        write_atomically(tmp_path / "pipe", "text")


def test_a_pipe_in_place_of_a_journal_is_not_waited_for(autofit, tmp_path):
    os.mkfifo(tmp_path / "pipe.journal")
    finished = autofit("jobs", "--storage", str(tmp_path / "pipe.journal"))
    assert finished.code == 5
    assert "it is no file" in finished.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_current_folder_that_is_gone_ends_no_command_with_a_traceback(
    autofit, tmp_path, command, monkeypatch
):
    monkeypatch.setenv("AUTOFIT_STORAGE", str(tmp_path / "jobs.journal"))
    gone = tmp_path / "gone"
    gone.mkdir()
    before = Path.cwd()
    os.chdir(gone)
    gone.rmdir()
    try:
        finished = autofit(*COMMANDS[command]("file"))
    finally:
        os.chdir(before)
    assert finished.code in (2, 5)
    assert finished.err.count("error: ") == 1


def test_a_workload_behind_a_loop_is_not_submitted(autofit, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOFIT_STORAGE", str(tmp_path / "jobs.journal"))
    (tmp_path / "mine.py").symlink_to("mine.py")
    finished = autofit(*COMMANDS["submitted file"](str(tmp_path / "mine")))
    assert finished.code == 2
    assert "Too many levels of symbolic links" in finished.err


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_workload_beyond_the_limit_is_not_submitted(autofit, tmp_path, has_folder, monkeypatch):
    monkeypatch.setenv("AUTOFIT_STORAGE", str(tmp_path / "jobs.journal"))
    (tmp_path / "mine.py").touch()
    os.truncate(tmp_path / "mine.py", MOST_BYTES + 1)
    folder = ("--working-dir", str(tmp_path)) if has_folder else ()
    model = ("--model", f"{tmp_path / 'mine.py'}:net", "--gpu-mem", "2G")
    finished = autofit("submit", *folder, *model, "--address", "http://[::1]:1")
    assert finished.code == 2
    assert "it is larger than" in finished.err


@pytest.mark.parametrize("command", ["estimate", "check"])
def test_a_prediction_needs_no_state_that_can_be_written(autofit, tmp_path, command, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(tmp_path / "file" / "state"))
    finished = autofit(command, "--model", "davenet", "--batch-size", "2", "--gpu", "a100-40g", "--json")
    assert finished.code == 0
    assert finished.document["batch_size"] == 2
