"""The token that a Ray cluster's HTTP server is asked with, found without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.dispatch.ray_connection import authorization
from autofit.errors import DispatchError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_K8S_TOKEN_AUTH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_token_is_looked_for_where_ray_does_and_in_its_order(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert authorization() == {}
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("of-home\n")
    assert authorization() == {"Authorization": "Bearer of-home"}
    (home / "other").write_text(" of-file \n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "other"))
    assert authorization() == {"Authorization": "Bearer of-file"}
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-variable")
    assert authorization() == {"Authorization": "Bearer of-variable"}
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert authorization() == {}


@pytest.mark.parametrize("content", [None, "", b"\xff"])
def test_a_named_file_without_a_token_is_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, content: str | bytes | None
) -> None:
    file = home / "token"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    with pytest.raises(DispatchError, match="RAY_AUTH_TOKEN_PATH"):
        authorization()
