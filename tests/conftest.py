"""Fixtures of the whole suite."""

from __future__ import annotations

import pathlib

import pytest


@pytest.fixture(autouse=True)
def state_dir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Gives every test a state directory of its own."""
    path = tmp_path / "state"
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(path))
    return path
