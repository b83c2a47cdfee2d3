"""A release that was put into a folder of its own is the one that a process imports."""

from __future__ import annotations

import sys

import pytest

from autofit import paths
from tests.bench import libraries

RELEASE = "made-up-library==4.0"


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves it."""
    folder = paths.state_dir() / "bench-libraries" / RELEASE
    (folder / "made_up_library-4.0.dist-info").mkdir(parents=True)
    (folder / "made_up_library-4.0.dist-info" / "METADATA").write_text(
        "Name: made-up-library\nVersion: 4.0\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("released")
def test_what_is_there_is_not_installed_again() -> None:
    assert libraries.install(RELEASE)
    libraries.use(RELEASE)
    assert sys.path[0] == str(paths.state_dir() / "bench-libraries" / RELEASE)


@pytest.mark.usefixtures("released")
def test_a_process_that_has_imported_another_release_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made-up-library", sys)
    with pytest.raises(ImportError, match="another release"):
        libraries.use(RELEASE)


def test_what_cannot_be_had_is_not_there() -> None:
    assert not libraries.install("made-up-library @ file:///nowhere/made_up_library-4.0-py3-none-any.whl")
