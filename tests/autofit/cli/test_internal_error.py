"""What autofit says where it is wrong itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.paths import STATE_DIR_VARIABLE, errors_dir


def broken():
    raise ZeroDivisionError("with postgresql://me:a-password@db/x\x1b[2J")


def test_an_unexpected_exception_is_a_sentence_and_a_file_with_its_traceback(autofit):
    finished = autofit("doctor", examine=broken)
    (details,) = errors_dir().iterdir()
    assert (finished.code, finished.out) == (1, "")
    assert finished.err == (
        "error: autofit itself failed (ZeroDivisionError: with postgresql://me:***@db/x\\u001b[2J), which is "
        f"a mistake in it: report it, with {details}, to whoever maintains your autofit\n"
    )
    text = details.read_text()
    assert text.startswith("autofit doctor\nPython 3.")
    assert "in broken\n" in text
    assert "a-password" not in text
    assert "\x1b" not in text


def test_an_exception_without_a_text_is_told_by_its_name(autofit):
    class MuteError(Exception):
        def __str__(self):
            raise KeyError("mute")

    def mute():
        raise MuteError

    finished = autofit("doctor", examine=mute)
    assert finished.code == 1
    assert "autofit itself failed (MuteError: (its text cannot be made: KeyError))" in finished.err


def test_with_json_it_is_a_document(autofit):
    finished = autofit("doctor", "--json", examine=broken)
    assert (finished.code, finished.err) == (1, "")
    assert (finished.document["kind"], finished.document["exit_code"]) == ("internal", 1)


def test_the_same_failure_is_one_file(autofit):
    for _ in range(3):
        autofit("doctor", examine=broken)
    assert len(list(errors_dir().iterdir())) == 1


def test_where_nothing_can_be_kept_the_traceback_is_printed(
    autofit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a file").touch()
    monkeypatch.setenv(STATE_DIR_VARIABLE, str(tmp_path / "a file"))
    finished = autofit("doctor", examine=broken)
    assert finished.code == 1
    assert "in broken\n" in finished.err
    assert "report it, with the traceback above, to" in finished.err
    assert "a-password" not in finished.err


@pytest.mark.parametrize("error", [EOFError("a worker's pipe"), BrokenPipeError("a worker's pipe")])
def test_the_end_of_a_pipe_inside_is_neither_ctrl_c_nor_the_reader_of_stdout(autofit, error: Exception):
    def cut_off():
        raise error

    finished = autofit("doctor", examine=cut_off)
    assert finished.code == 1
    assert "a worker's pipe" in finished.err
