from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import platformdirs
import pytest

from autofit.errors import StorageError
from autofit.paths import (
    cache_dir,
    keep,
    require_writable,
    state_dir,
    studies_dir,
    traces_dir,
    write_atomically,
)

FOLDERS = {"studies": studies_dir, "traces": traces_dir, "cache": cache_dir}


def test_the_environment_chooses_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFIT_STATE_DIR", "/elsewhere/state")
    assert state_dir() == Path("/elsewhere/state")


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AUTOFIT_STATE_DIR", "~/autofit")
    assert state_dir() == tmp_path / "autofit"


@pytest.mark.parametrize("value", [None, ""])
def test_without_it_the_platform_does(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("AUTOFIT_STATE_DIR")
    else:
        monkeypatch.setenv("AUTOFIT_STATE_DIR", value)
    assert state_dir() == platformdirs.user_state_path("autofit")


@pytest.mark.parametrize(("name", "folder"), FOLDERS.items())
def test_a_folder_is_made_where_it_is_missing_and_kept_where_it_is_not(
    state_dir: Path, name: str, folder: Callable[[], Path]
) -> None:
    assert not state_dir.exists()
    assert folder() == state_dir / name
    (state_dir / name / "kept").write_text("x")
    assert folder().joinpath("kept").read_text() == "x"


@pytest.mark.parametrize("folder", FOLDERS.values())
def test_a_folder_that_cannot_be_made_is_a_storage_error_with_the_way_out(
    state_dir: Path, folder: Callable[[], Path]
) -> None:
    state_dir.write_text("a file stands where the folder should be")
    with pytest.raises(StorageError, match=r"cannot create .*AUTOFIT_STATE_DIR") as caught:
        folder()
    assert caught.value.exit_code == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_folder_that_may_not_be_written_to_is_a_storage_error(state_dir: Path) -> None:
    studies_dir().chmod(0o500)
    with pytest.raises(StorageError, match=r"cannot write to .*studies"):
        studies_dir()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_atomically(target, "first, and longer")
    write_atomically(target, "zweites é")
    assert target.read_text(encoding="utf-8") == "zweites é"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_failed_write_leaves_the_old_file_and_no_remains(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    write_atomically(target, "old")
    with pytest.raises(TypeError):
        write_atomically(target, object())  # type: ignore[arg-type]
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_half_of_a_character_costs_no_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "page.html", "new \ud800")
    assert (tmp_path / "page.html").read_text() == "new ?"


def test_a_name_may_be_as_long_as_the_system_lets_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("a" * 255), "text")
    assert (tmp_path / ("a" * 255)).read_text() == "text"


@pytest.mark.parametrize("name", ["a" * 256, "a\0b", "a\ud800b"])
def test_a_name_that_no_file_can_have_is_found_out_before(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        require_writable(tmp_path / name)


@pytest.mark.parametrize("folder", FOLDERS.values())
def test_what_is_kept_is_the_users_own(state_dir: Path, folder: Callable[[], Path]) -> None:
    before = os.umask(0o022)
    try:
        made = folder()
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (made, state_dir)] == [0o700, 0o700]


@pytest.mark.parametrize(
    ("mode", "then"), [(0o755, 0o700), (0o750, 0o700), (0o705, 0o700), (0o775, 0o775), (0o1777, 0o1777)]
)
def test_what_an_earlier_version_let_others_read_is_taken_from_them(
    state_dir: Path, mode: int, then: int
) -> None:
    folder = state_dir / "studies"
    folder.mkdir(parents=True)
    state_dir.chmod(0o755)
    folder.chmod(mode)
    assert studies_dir() == folder
    # The state folder itself may be one that the user named, with other things in it.
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, state_dir)] == [then, 0o755]


def test_a_folder_behind_a_link_keeps_its_mode(state_dir: Path, tmp_path: Path) -> None:
    others = tmp_path / "others"
    others.mkdir(mode=0o755)
    others.chmod(0o755)
    state_dir.mkdir()
    (state_dir / "studies").symlink_to(others)
    studies_dir()
    assert stat.S_IMODE(others.stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_of_somebody_else_keeps_its_mode(state_dir: Path) -> None:
    folder = studies_dir()
    folder.chmod(0o755)
    os.chown(folder, 65534, -1)
    studies_dir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_what_can_be_made_again_is_kept_where_that_can_be(state_dir: Path) -> None:
    keep(cache_dir, "name", lambda: "first")
    keep(cache_dir, "name", lambda: "second")
    assert (state_dir / "cache" / "name").read_text() == "first"


def test_without_a_place_it_is_not_kept_and_that_is_no_error(state_dir: Path) -> None:
    state_dir.write_text("a file stands where the folder should be")
    keep(cache_dir, "name", lambda: "text")
    assert state_dir.is_file()


def test_the_home_of_nobody_is_a_storage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFIT_STATE_DIR", "~nobody-of-that-name/state")
    with pytest.raises(StorageError, match="AUTOFIT_STATE_DIR"):
        state_dir()


def test_what_cannot_be_replaced_is_a_storage_error_and_leaves_no_remains(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(StorageError, match=r"cannot write .*folder: Is a directory"):
        write_atomically(target, "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_missing_folder_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*: No such file or directory; choose another"):
        write_atomically(tmp_path / "missing" / "result.json", "text")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing/report.html", "cannot write .*: No such file or directory"),
        (".", "it is a folder; name a file in it"),
        ("a-file/report.html", "cannot write .*: Not a directory"),
    ],
)
def test_a_place_where_no_file_can_be_is_found_before_it_is_written(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "a-file").write_text("in the way")
    with pytest.raises(StorageError, match=said):
        require_writable(tmp_path / name)


def test_finding_out_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    require_writable(path)
    path.write_text("an earlier one")
    require_writable(path)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["an earlier one"]
