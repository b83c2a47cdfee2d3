"""`autofit mcp` without the SDK; with it, it is driven in tests/autofit/mcp/."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.commands import Finished


@pytest.mark.parametrize("missing", ["mcp", "anyio"])
def test_without_the_sdk_one_sentence_says_what_to_install(
    autofit: Callable[..., Finished], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    done = autofit("mcp")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "pip install 'autofit-gpu[mcp]'" in done.err
