"""What a script writes is kept out of its user's files, whichever way it writes."""

from __future__ import annotations

import io
import json
import os
import readline
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import torch

from autofit_workers.scripts.files import KeptFiles


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, beside one that is temporary."""
    users = tmp_path / "users"
    users.mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(users)
    for name in ("kept.txt", "empty", "../temporary/old"):
        (users / name).write_text("" if name == "empty" else "old")
    (users / "kept").mkdir()
    (users / "other.db").touch()
    with sqlite3.connect(users / "kept.db") as database:
        database.execute("create table kept (number)")
    database.close()
    return users


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in a folder, with its rights."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


@contextmanager
def at(folder: str) -> Iterator[int]:
    number = os.open(folder, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


def beside(act: Callable[[int], Any]) -> None:
    """Does something by paths that are relative to an open folder."""
    with at(".") as number:
        act(number)


REFUSED: dict[str, Callable[[], Any]] = {
    "remove": lambda: os.remove("kept.txt"),
    "unlink at": lambda: beside(lambda number: os.unlink("kept.txt", dir_fd=number)),
    "rmdir": lambda: os.rmdir("kept"),
    "rename": lambda: os.rename("kept.txt", "other"),
    "rename at": lambda: beside(lambda number: os.rename("kept.txt", "other", src_dir_fd=number)),
    "rename a folder": lambda: os.rename("kept", "other"),
    "rmtree": lambda: shutil.rmtree("kept"),
    "chmod": lambda: os.chmod("kept.txt", 0o777),
    "chmod of a folder": lambda: os.chmod("kept", 0o777),
    "fchmod": lambda: beside(lambda number: os.fchmod(number, 0o777)),
    "chown": lambda: os.chown("kept.txt", os.getuid(), os.getgid()),
    "lchown": lambda: os.lchown("kept.txt", os.getuid(), os.getgid()),
    "utime": lambda: os.utime("kept.txt"),
    "setxattr": lambda: os.setxattr("kept.txt", "user.mark", b"1"),
    "removexattr": lambda: os.removexattr("kept.txt", "user.mark"),
    "link": lambda: os.link("kept.txt", "other"),
    "in a temporary folder": lambda: os.remove("../temporary/old"),
    "chmod in a temporary folder": lambda: os.chmod("../temporary/old", 0o777),
    "database": lambda: sqlite3.Connection("kept.db"),
    "database by a URI": lambda: sqlite3.connect("file:kept.db", uri=True),
    "without a function's name": lambda: io.FileIO("empty", "w"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_a_file_of_the_user_is_refused(folder: Path, name: str):
    before = contents(folder.parent)
    with KeptFiles(str(folder), saves=False), pytest.raises(PermissionError, match="does not let the script"):
        REFUSED[name]()
    assert contents(folder.parent) == before


def saved_by_torch(path: str) -> None:
    writer = torch._C.PyTorchFileWriter(path)
    writer.write_record("data", b"new", 3)
    writer.write_end_of_file()
    assert torch._C.PyTorchFileReader(path).has_record("data")


def saved_by_jit(path: str) -> None:
    module = torch.jit.script(torch.nn.Linear(1, 1))
    module.save(path)
    torch.jit.save(module, path)
    assert torch.jit.load(path).weight.shape == (1, 1)


def saved_by_profiler(path: str) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(1)
    profile.export_chrome_trace(path)
    assert "traceEvents" in json.loads(Path(path).read_text())


def saved_by_tokenizers(path: str) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.save(path)
    assert tokenizers.Tokenizer.from_file(path).get_vocab() == {"a": 0}
    assert tokenizer.model.save(".", "words") == ["./words-vocab.json"] or tokenizer.model.save(".")


def saved_by_safetensors(path: str) -> None:
    safetensors.numpy.save_file({"a": np.ones(1)}, path)
    assert safetensors.numpy.load(Path(path).read_bytes())["a"] == [1]


def mapped(path: str) -> None:
    torch.from_file(path, shared=True, size=3, dtype=torch.uint8).fill_(0)
    torch.UntypedStorage.from_file(path, True, 3).fill_(0)


def kept_in_database(path: str) -> None:
    if Path(path).exists() and not path.endswith(".db"):
        return
    for _ in range(2):
        with sqlite3.connect(path) as database:
            database.execute("create table if not exists written (number)")
            database.execute("insert into written values (1)")
        database.close()
    with sqlite3.connect(path) as database:
        assert database.execute("select count(*) from written").fetchone() == (2,)
    database.close()


def written_at(path: str) -> None:
    with at(".") as number:
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, dir_fd=number)
        os.write(file, b"new")
        os.close(file)


WRITTEN: dict[str, Callable[[str], Any]] = {
    "text": lambda path: Path(path).write_text("new"),
    "bytes of a name": lambda path: open(os.fsencode(path), "w").close(),
    "descriptor": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)),
    "descriptor at": written_at,
    "truncate": lambda path: Path(path).touch() or os.truncate(path, 0),
    "touch": lambda path: Path(path).touch(),
    "replace": lambda path: (Path("part").write_text("new"), os.replace("part", path)),
    "replace from a temporary folder": lambda path: (
        Path("../temporary/part").write_text("new"),
        os.replace("../temporary/part", path),
    ),
    "copy": lambda path: shutil.copy2("other.db", path),
    "history": lambda path: readline.write_history_file(Path(path)),
    "archive": saved_by_torch,
    "script": saved_by_jit,
    "profile": saved_by_profiler,
    "tokenizer": saved_by_tokenizers,
    "safetensors": saved_by_safetensors,
    "mapped": mapped,
    "database": kept_in_database,
    "symlink": lambda path: (os.symlink(path, "link"), Path("link").write_text("new")),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("path", ["kept.txt", "empty", "new", "kept.db", "../temporary/old"])
def test_what_is_written_leaves_the_users_files_as_they_were(folder: Path, name: str, path: str):
    if name == "mapped" and path == "new":
        path = "kept.txt"  # there has to be one
    before = contents(folder.parent)
    with KeptFiles(str(folder), saves=False):
        WRITTEN[name](path)
    after = contents(folder.parent)
    assert {each: after.get(each) for each in before} == before
    assert not [each for each in after if each.startswith("users") and each not in before]


def test_what_a_script_makes_in_a_temporary_folder_it_may_change(folder: Path):
    temporary = folder.parent / "temporary"
    with KeptFiles(str(folder), saves=False):
        made = temporary / "made"
        (made / "deep").mkdir(parents=True)
        (made / "file").write_text("one")
        (made / "file").chmod(0o600)
        with (made / "file").open("a") as file:
            file.write(" two")
        (made / "file").rename(temporary / "moved")
        shutil.rmtree(made)
    assert (temporary / "moved").read_text() == "one two"
    assert not made.exists()


def test_pipes_and_folders_that_a_script_makes_are_gone_at_the_end(folder: Path):
    before = contents(folder)
    with KeptFiles(str(folder), saves=False):
        os.mkfifo("pipe")
        beside(lambda number: os.mkdir("made", dir_fd=number))
        assert Path("made").is_dir() and Path("pipe").exists()
    assert contents(folder) == before


def test_devices_and_terminals_are_written_to(folder: Path):
    with KeptFiles(str(folder), saves=False), open("/dev/null", "w") as null:
        assert os.path.samestat(os.fstat(null.fileno()), os.stat("/dev/null"))


def test_a_link_that_a_script_makes_is_followed_and_can_be_made_anew(folder: Path):
    before = contents(folder)
    with KeptFiles(str(folder), saves=False):
        Path("first.pt").write_text("first")
        Path("second.pt").write_text("second")
        os.symlink("first.pt", "latest")
        with pytest.raises(FileExistsError):
            os.symlink("second.pt", "latest")
        assert os.path.islink("latest")
        assert Path("latest").read_text() == "first"
        os.remove("latest")
        os.symlink(folder / "kept.txt", "latest")
        assert Path("latest").read_text() == "old"
    assert contents(folder) == before


def test_links_in_a_circle_lead_nowhere(folder: Path):
    before = contents(folder)
    with KeptFiles(str(folder), saves=False):
        for name, leads_to in (("a", "b"), ("b", "c"), ("c", "a")):
            os.symlink(leads_to, name)
        with pytest.raises(OSError):
            Path("a").write_text("new")
        os.remove("a")
    assert contents(folder) == before


def test_modules_that_kept_the_plain_functions_lead_to_the_same_files(folder: Path):
    before = contents(folder)
    import bz2
    import tarfile

    with KeptFiles(str(folder), saves=False):
        with tarfile.open("packed.tar", "w") as packed:
            packed.add("kept.txt")
        assert tarfile.is_tarfile("packed.tar")
        with bz2.open("packed.bz2", "wb") as file:
            file.write(b"new")
        np.savetxt("losses.txt", np.zeros(2))
        assert np.loadtxt("losses.txt").tolist() == [0.0, 0.0]
    assert tarfile.bltn_open is open
    assert contents(folder) == before


def test_a_new_file_by_its_descriptor_is_found_again_and_not_in_the_folder(folder: Path):
    before = contents(folder)
    with KeptFiles(str(folder), saves=False):
        number = os.open("new", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(number, b"new")
        os.close(number)
        assert Path("new").read_text() == "new"
        assert contents(folder) == before
        with pytest.raises(FileExistsError):
            os.open("new", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
