"""The folder with a job's code, packed and kept."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit.errors import UsageError
from autofit.jobs import packages
from autofit.jobs.queue import JobQueue
from autofit.jobs.ray_jobs import working_dir_files
from autofit.jobs.records import WorkingDir


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    (path / "models").mkdir(parents=True)
    (path / "train.py").write_text("import models.net")
    (path / "models" / "net.py").write_text("WIDTH = 8")
    return path


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    with JobQueue.open(str(tmp_path / "jobs.journal")) as opened:
        yield opened


def packed(folder: Path) -> bytes:
    return packages.pack(folder, working_dir_files(folder))


def test_equal_contents_are_equal_bytes_whenever_and_by_whom_they_were_written(folder: Path) -> None:
    first = packed(folder)
    for path in folder.rglob("*.py"):
        os.utime(path, (0, 0))
    assert packed(folder) == first
    (folder / "models" / "net.py").write_text("WIDTH = 9")
    assert packed(folder) != first


def test_what_ray_would_not_upload_is_not_packed(folder: Path) -> None:
    (folder / ".gitignore").write_text("*.ckpt\n")
    (folder / ".rayignore").write_text("data/\n")
    (folder / "last.ckpt").write_text("weights")
    for ignored in ("data", "__pycache__", ".git"):
        (folder / ignored).mkdir()
        (folder / ignored / "file").write_text("x")
    names = zipfile.ZipFile(io.BytesIO(packed(folder))).namelist()
    assert sorted(names) == [".gitignore", ".rayignore", "models/net.py", "train.py"]


def test_a_package_is_kept_once_and_read_back(folder: Path, queue: JobQueue) -> None:
    package = packed(folder)
    kept = packages.store(queue.storage, package)
    assert packages.store(queue.storage, package) == kept
    assert packages.load(queue.storage, kept) == package
    with pytest.raises(packages.PackageGoneError, match="--again"):
        packages.load(queue.storage, WorkingDir(digest="0", where="working-dir-0"))


@pytest.mark.parametrize("num_bytes", [9 * 1024**2, 200 * 1024**2])
def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(folder: Path, num_bytes: int) -> None:
    with (folder / "data.bin").open("wb") as file:
        file.write(os.urandom(9 * 1024**2))
        file.truncate(num_bytes)
    with pytest.raises(UsageError, match=r"more than the 8.00 MiB .* data.bin \(.*\.rayignore"):
        packed(folder)
