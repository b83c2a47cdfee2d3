"""Commands leave a warm tracer for the next one where they are told to, and answer alike with and without."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit import paths
from autofit.predict.tracing import warm

pytestmark = pytest.mark.process

_TUNE = ("tune", "--model", "davenet", "--gpu-mem", "4G", "--max-batch", "8", "--json", "--quiet")


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Empty state directory, whose warm tracer is ended after the test."""
    monkeypatch.setenv(paths.STATE_DIR_VARIABLE, str(tmp_path))
    yield tmp_path
    if (found := warm.state()) is not None:
        os.kill(found.process, signal.SIGTERM)


def answer(*arguments: str) -> dict[str, object]:
    """JSON answer of a command of a process of its own, which has no terminal."""
    command = [sys.executable, "-m", "autofit.cli", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    document: dict[str, object] = json.loads(ran.stdout)
    return document


def forget_all_but_the_tracer(state: Path) -> None:
    for folder in state.iterdir():
        if folder != paths.warm_path():
            shutil.rmtree(folder)


def without_times(value: object) -> object:
    """The answer without the times at which it was found, and how long that took."""
    if isinstance(value, dict):
        volatile = ("wall_seconds", "answered_seconds")
        return {name: without_times(each) for name, each in value.items() if name not in volatile}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def test_a_command_leaves_a_tracer_that_answers_the_next_one_alike(state):
    first = answer(*_TUNE, "--warm")
    give_up = time.monotonic() + 60
    while (found := warm.state()) is None:
        assert time.monotonic() < give_up
        time.sleep(0.1)
    forget_all_but_the_tracer(state)
    begin = time.monotonic()
    second = answer(*_TUNE, "--warm")
    assert without_times(second) == without_times(first)
    after = warm.state()
    assert after is not None
    assert after.process == found.process
    seconds = time.monotonic() - begin
    assert after.seconds_left > found.seconds_left - seconds + 0.1  # it was asked, and ends later


@pytest.mark.parametrize("options", [(), ("--no-warm",)], ids=["no terminal", "--no-warm"])
def test_nothing_stays_running_unless_a_command_is_told_so(state, options):
    answer("check", "--model", "davenet", "--gpu", "t4", "--batch-size", "2", "--json", *options)
    assert not paths.warm_path().exists()
