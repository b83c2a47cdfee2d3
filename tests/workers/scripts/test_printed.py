"""What a script printed last, whatever it does to its streams."""

from __future__ import annotations

import io
import sys

import pytest

from autofit_workers.scripts.printed import Printed


def test_remembers_the_last_line_and_leaves_the_streams_as_they_were(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed = Printed()
    with printed.remembered():
        sys.stdout.write("first\nlast \n\n")
    sys.stdout.write("later\n")
    assert printed.last_line() == "last"
    assert capsys.readouterr().out == "first\nlast \n\nlater\n"


def test_a_script_may_delete_the_write_of_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stream)
    printed = Printed()
    with printed.remembered():
        del stream.write
    assert "write" not in vars(stream)
