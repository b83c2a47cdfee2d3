"""A script is ended when it runs on for long, not counting what PyTorch's compiler takes."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from autofit_workers.scripts import clock


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(clock, "_SECONDS_AFTER_LOOPS", 0.01)
    monkeypatch.setattr(clock, "_GRACE_SECONDS", 0.01)
    return SimpleNamespace(is_late=False, leave=lambda: None, seconds_of_compiler=lambda: 0.0)


def test_a_script_that_runs_on_is_ended(watch):
    is_over = threading.Event()
    clock.Clock(watch, is_over.set)
    watch.on_loops_ended()
    assert is_over.wait(60)
    assert watch.is_late


def test_the_compilers_time_is_added(watch):
    asked = [0.0, 3600.0]  # when the loops were ended, and when the script would be late
    watch.seconds_of_compiler = lambda: asked.pop(0) if len(asked) > 1 else asked[0]
    is_over = threading.Event()
    timer = clock.Clock(watch, is_over.set)
    watch.on_loops_ended()
    while len(asked) > 1 or len(timer._timers) < 2:
        assert not is_over.wait(0.01)
    timer.cancel()
    assert not watch.is_late
