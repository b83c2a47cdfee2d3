"""The log of a process: both ends, however much is between them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from autofit_workers.process.log import END_BYTES, Log


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    log.close()
    os.close(log.writer)


def test_what_is_short_is_kept_as_it_is(log: Log):
    os.write(log.writer, "grüße\n".encode())
    os.write(log.writer, b"end")
    assert log.text() == "grüße\nend"


@pytest.mark.parametrize("num_bytes", [2 * END_BYTES, 2 * END_BYTES + 1, 10 * END_BYTES])
def test_of_what_is_long_both_ends_are_kept_and_the_rest_is_counted(log: Log, num_bytes: int):
    printed = bytes(ord("a") + place % 26 for place in range(num_bytes))
    for start in range(0, num_bytes, 1000):
        os.write(log.writer, printed[start : start + 1000])
        assert log.listen()
    left_out = num_bytes - 2 * END_BYTES
    between = f"\n[{left_out:,} bytes left out]\n" if left_out else ""
    assert log.text() == printed[:END_BYTES].decode() + between + printed[-END_BYTES:].decode()


def test_what_came_before_is_forgotten(log: Log):
    os.write(log.writer, b"before")
    log.forget()
    os.write(log.writer, b"after")
    assert log.text() == "after"


def test_a_pipe_that_nobody_writes_to_any_more_says_so():
    log = Log()
    os.write(log.writer, b"last")
    os.close(log.writer)
    assert not log.listen()
    assert log.text() == "last"
    log.close()
