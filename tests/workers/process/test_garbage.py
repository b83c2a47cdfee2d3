"""What the garbage collector is kept from looking at."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit_workers.process.garbage import importing


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_was_there_is_kept_where_a_module_was_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_once.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = gc.get_freeze_count()
    with importing():
        __import__("imported_once")
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    del sys.modules["imported_once"]


def test_where_none_was_garbage_stays_garbage() -> None:
    before = gc.get_freeze_count()
    with importing():
        pass
    assert gc.get_freeze_count() == before
