"""Streams that are full, closed or read by nobody, each tried with real descriptors."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.padding import Padding
from rich.text import Text

from autofit.cli.streams import Guarded
from autofit.cli.text.output import stdout
from autofit.errors import OutputError, ReaderGoneError

AUTOFIT = [sys.executable, "-m", "autofit.cli"]
FULL = Path("/dev/full")

needs_dev_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def in_shell(redirections: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command with the redirections of a shell."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", *AUTOFIT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def with_dead_reader(*arguments: str) -> tuple[int, bytes]:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        finished = subprocess.run(
            [*AUTOFIT, *arguments], stdout=write_end, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write_end)
    return finished.returncode, finished.stderr


@pytest.mark.parametrize("arguments", [("gpus",), ("gpus", "--json"), ("--help",), ("completion", "bash")])
def test_a_reader_that_goes_away_ends_the_command_quietly_with_141(arguments: tuple[str, ...]):
    assert with_dead_reader(*arguments) == (141, b"")


@needs_dev_full
@pytest.mark.parametrize("arguments", [("gpus",), ("gpus", "--json"), ("--version",)])
def test_a_full_stdout_is_5_and_a_sentence_on_stderr(arguments: tuple[str, ...]):
    finished = in_shell(">/dev/full", *arguments)
    assert finished.returncode == 5
    assert finished.stderr.startswith("error: stdout cannot be written (No space left on device)")
    assert finished.stderr.count("\n") == 1


def test_a_closed_stdout_is_5():
    finished = in_shell(">&-", "gpus")
    assert finished.returncode == 5
    assert finished.stderr.startswith("error: stdout cannot be written (Bad file descriptor)")


@needs_dev_full
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "<&- 2>&-"])
def test_a_dead_stderr_takes_neither_the_answer_nor_the_exit_code(redirection: str):
    finished = in_shell(redirection, "gpus", "--json")
    assert finished.returncode == 0
    assert finished.stdout.startswith("{")
    failed = in_shell(redirection, "estimate", "--model", "davenett", "--batch-size", "3")
    assert (failed.returncode, failed.stdout) == (2, "")


def test_all_descriptors_closed_is_5():
    assert in_shell("<&- >&- 2>&-", "gpus").returncode == 5


def test_closed_descriptors_are_not_those_of_files_that_are_opened_later():
    code = (
        "import os, sys\nfrom autofit.cli.streams import open_missing\nopen_missing()\n"
        "sys.exit(0 if os.open('/', os.O_RDONLY) > 2 else 1)"
    )
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize("columns", ["0", "1", "19"])
def test_no_number_of_columns_is_too_small_for_an_answer(columns: str):
    finished = subprocess.run(
        [*AUTOFIT, "models"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": columns},
    )
    assert finished.returncode == 0
    assert "davenet" in finished.stdout


class Failing(io.StringIO):
    """A stream in memory that fails as it is told to."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def write(self, text: str) -> int:
        raise self._error


@pytest.mark.parametrize(
    ("error", "expected"),
    [(BrokenPipeError(32, "Broken pipe"), ReaderGoneError), (OSError(28, "No space left"), OutputError)],
)
def test_only_the_stream_of_answers_ends_what_writes_to_it(error: OSError, expected: type[Exception]):
    with pytest.raises(expected):
        Guarded(Failing(error), ends=True).write("an answer")
    Guarded(Failing(error), ends=False).write("progress")


@pytest.mark.parametrize(
    "write",
    [
        lambda stream, text: stream.write(text),
        lambda stream, text: stream.buffer.write(text.encode()),
    ],
)
def test_what_is_written_is_shown_without_controls_and_secrets(write: Callable[[Guarded, str], object]):
    shown = io.StringIO()
    write(Guarded(shown, ends=True), "\x1b]0;title\x07 of ray://me:pw@head\r\nnext\x9b2J")
    assert shown.getvalue() == "\\u001b]0;title\\u0007 of ray://me:***@head\nnext\\u009b2J"


def test_the_sequences_of_rich_itself_pass():
    shown = io.StringIO()
    Guarded(shown, ends=True).own.write("\x1b[1mbold\x1b[0m")
    assert shown.getvalue() == "\x1b[1mbold\x1b[0m"


def test_what_is_laid_out_is_safe_before_its_lines_are_broken():
    shown = io.StringIO()
    with contextlib.redirect_stdout(Guarded(shown, ends=True)):
        console = stdout()
        console.width = 30
        text = Text("at postgresql://me:a-password-of-some-length@db/x\x1b[2J", style="dim")
        console.print(Padding(text, (0, 0, 0, 2), expand=False))
        console.print("a name with \x1b]0;a title\x9c")
    assert (
        "".join(shown.getvalue().split())
        == "atpostgresql://me:***@db/x\\u001b[2Janamewith\\u001b]0;atitle\\u009c"
    )
