"""Hooks of the plugin for pytest, which pytest loads in every run on this machine.

So nothing but pytest and a few names is imported here, and the rest only once a test needs it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from autofit.testing.names import (
    FIXTURE,
    FOUND,
    LOCK_FILE,
    MARK,
    OF_THE_MARK,
    TOLERANCE,
    UPDATE,
    found_of_item,
    report_of_fork,
)

if TYPE_CHECKING:
    from autofit.testing.blocks import PeakMemory


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--memory-update` and the settings of the plugin."""
    group = parser.getgroup("autofit", "predicted GPU memory")
    group.addoption(
        UPDATE,
        action="store_true",
        help="write the peaks of tests with the mark `memory` to the lock, instead of comparing them with it",
    )
    parser.addini(LOCK_FILE, "lock with the peaks of marked tests, from the root", default="memory.lock.toml")
    parser.addini(TOLERANCE, "growth of a peak that fails no marked test; 2% unless set", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark, and what collects its findings."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(gpu='t4', batch_size=64, tolerance='2%', max_peak='10GiB', ...): the test returns a "
        "workload, whose predicted peak must fit the card and must not have grown; options of autofit.check",
    )
    config.pluginmanager.register(_Run(config), "autofit-memory")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests that cannot be predicted in this environment, with the reason."""
    for item in items:
        if _concerns(item) and (reason := _why_skipped(item)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails a test that can have neither mark nor fixture."""
    if _concerns(item) and (problem := _why_impossible(item)) is not None:
        pytest.fail(problem, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that has the mark or asks for the fixture; others are left to pytest."""
    if _is_marked(pyfuncitem):
        from autofit.testing.marked import run_marked

        run_marked(pyfuncitem)
        return True
    if _asks_for_block(pyfuncitem):
        from autofit.testing.forked import run_forked

        run_forked(pyfuncitem)
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds what was found out about a marked test, or how a test failed in its fork."""
    report = yield
    if call.when != "call":
        return report
    if (found := item.stash.get(found_of_item, None)) is not None:
        setattr(report, FOUND, found)
    forked = item.stash.get(report_of_fork, None)
    if forked is not None and forked.outcome == report.outcome:
        report.longrepr = forked.longrepr
    return report


@pytest.fixture
def peak_memory(request: pytest.FixtureRequest) -> PeakMemory:
    """Context manager that predicts the peak memory of the code in its block, on a GPU that is not there.

    `with peak_memory(gpu="t4") as peak:` runs the block; `peak.device` is the GPU. After the block
    `peak.likely_bytes`, `peak.high_bytes` and `peak.estimate` have the prediction. The test runs in a fork
    of pytest's process.
    """
    from autofit.testing.blocks import PeakMemory

    return PeakMemory(request.node.nodeid)


class _Run:
    """Collector of what was found out about the marked tests of a run, wherever they run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._found: dict[str, dict[str, Any]] = {}
        self._problem = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a test's report, which with pytest-xdist comes from one of the workers."""
        if (found := getattr(report, FOUND, None)) is not None:
            self._found[report.nodeid] = found

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the lock, once, in the process that hears of all tests."""
        if not self._found or not self._config.getoption(UPDATE) or hasattr(self._config, "workerinput"):
            return
        from autofit.testing.records import update_lock

        self._problem = update_lock(self._config, self._found)
        if self._problem:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints a line for each marked test, where there are any."""
        if not self._found:
            return
        from autofit.testing.records import summary_lines

        terminalreporter.section("predicted GPU memory")
        for line in summary_lines(self._found, updates=self._config.getoption(UPDATE)):
            terminalreporter.line(line)
        if self._problem:
            terminalreporter.line(f"ERROR: {self._problem}", red=True)


def _concerns(item: pytest.Item) -> bool:
    return _is_marked(item) or _asks_for_block(item)


def _is_marked(item: pytest.Item) -> bool:
    """Whether a test has the mark, with arguments of this plugin.

    Projects have marks of that name of their own, such as for tests that take much memory.
    """
    return any(not OF_THE_MARK.isdisjoint(mark.kwargs) for mark in item.iter_markers(MARK))


def _asks_for_block(item: pytest.Item) -> bool:
    """Whether a test has this plugin's fixture; a fixture of that name of the project's goes before it."""
    information: Any = getattr(item, "_fixtureinfo", None)  # pytest has no public way to a test's fixtures
    named = [] if information is None else list(information.name2fixturedefs.get(FIXTURE, ()))
    return bool(named) and named[-1].func.__module__ == __name__


def _why_skipped(item: pytest.Item) -> str | None:
    """Reason why nothing can be predicted in this environment; None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "autofit predicts with PyTorch, which is not installed here: pip install torch"
    if sys.platform == "win32" or (_asks_for_block(item) and not hasattr(os, "fork")):
        return "autofit does not run on Windows itself: run pytest in WSL"
    return None


def _why_impossible(item: pytest.Item) -> str | None:
    """Sentence on why a test can have neither mark nor fixture; None if it can."""
    from inspect import isasyncgenfunction, iscoroutinefunction
    from unittest import TestCase

    if _is_marked(item) and _asks_for_block(item):
        return f"a test has the mark {MARK} or the fixture {FIXTURE}, not both: make two tests of it"
    kind = getattr(item, "cls", None)
    if not isinstance(item, pytest.Function) or (kind is not None and issubclass(kind, TestCase)):
        return f"the mark {MARK} is for functions and methods that pytest calls: write this test as one"
    if iscoroutinefunction(item.obj) or isasyncgenfunction(item.obj):
        return f"a test with the mark {MARK} or the fixture {FIXTURE} cannot be async: write it with def"
    return None
