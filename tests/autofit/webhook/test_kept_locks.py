"""Locks on a disk, while files are replaced as Kubernetes replaces those of a ConfigMap."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.webhook.kept_locks import KeptLocks, UnknownConfigurationError
from tests.autofit.webhook.reviews import lock_in, peak

GIB = 1024**3


def likely(locks: KeptLocks, name: str) -> float:
    return locks.configuration(name).peaks[0].likely_bytes / GIB


def test_a_configmap_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        lock_in(tmp_path / version / "team.toml", "gpt", peak("t4", int(version), 4))
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    (mounted / "..data").symlink_to(tmp_path / "1")
    (mounted / "team.toml").symlink_to(Path("..data") / "team.toml")
    locks = KeptLocks([mounted], log=print)
    locks.refresh()
    assert likely(locks, "gpt") == 1
    (tmp_path / "new").symlink_to(tmp_path / "2")
    (tmp_path / "new").replace(mounted / "..data")
    locks.refresh()
    assert likely(locks, "gpt") == 2


def test_a_broken_lock_keeps_what_was_read_and_is_told_once(tmp_path: Path) -> None:
    said: list[str] = []
    path = lock_in(tmp_path / "a.toml", "gpt", peak("t4", 1, 2))
    locks = KeptLocks([path], log=said.append)
    locks.refresh()
    path.write_text('schema = "autofit.lock/9"\n')
    for _ in range(3):
        locks.refresh()
    assert (likely(locks, "gpt"), len(locks.failures), len(said)) == (1, 1, 1)
    assert "autofit.lock/9" in said[0]
    lock_in(path, "gpt", peak("t4", 3, 4))
    locks.refresh()
    assert (likely(locks, "gpt"), len(locks.failures)) == (3, 0)


def test_a_file_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    path = lock_in(tmp_path / "a.toml", "gpt", peak("t4", 1, 2))
    locks = KeptLocks([tmp_path], log=print)
    locks.refresh()
    path.unlink()
    locks.refresh()
    with pytest.raises(UnknownConfigurationError, match="no lock has a configuration 'gpt'"):
        locks.configuration("gpt")


def test_a_name_in_two_locks_has_to_be_told_apart(tmp_path: Path) -> None:
    lock_in(tmp_path / "a.toml", "gpt", peak("t4", 1, 2))
    lock_in(tmp_path / "b.toml", "gpt", peak("t4", 3, 4))
    locks = KeptLocks([tmp_path], log=print)
    locks.refresh()
    with pytest.raises(UnknownConfigurationError, match=r"is in a\.toml and b\.toml: .* as a\.toml:gpt"):
        locks.configuration("gpt")
    assert likely(locks, "b.toml:gpt") == 3
