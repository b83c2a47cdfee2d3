"""Runs a test in a fork of pytest's process, and takes over its result.

    pytest's process ─ fork ─▶ the test function ─▶ its report, as JSON over a pipe ─▶ the test's outcome here

Fixtures are set up and torn down in pytest's process. What the test itself changes in memory is gone with the
fork, and so is what it does to PyTorch.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import pytest

from autofit.errors import AutofitError
from autofit.predict.self_test import require_prediction
from autofit.testing import blocks
from autofit.testing.names import report_of_fork
from autofit.testing.outcomes import as_outcomes
from autofit_workers.process.descendants import die_with_parent
from autofit_workers.trials import door

_CHUNK_BYTES = 1 << 16


def run_forked(item: pytest.Function) -> None:
    """Runs a test's function in a fork; passes, fails or skips here as it did there."""
    with as_outcomes():
        require_prediction(door.run)
    finders = blocks.prepare()
    names = item._fixtureinfo.argnames  # noqa: SLF001 - pytest itself calls tests by these
    function = functools.partial(item.obj, **{name: item.funcargs[name] for name in names})

    def run() -> dict[str, Any]:
        blocks.enter_fork(finders)
        return _run(item, function)

    text, status = _in_fork(run)
    if not text:
        pytest.fail(f"the test's process ended before the test did ({_how(status)})", pytrace=False)
    _take_over(item, json.loads(text))


def _run(item: pytest.Function, function: Callable[[], object]) -> dict[str, Any]:
    """Result of a test's function, run here, as plain data."""
    with warnings.catch_warnings(record=True) as warned:
        call = pytest.CallInfo.from_call(lambda: _call(item, function), when="call")
    report = pytest.TestReport.from_item_and_call(item, call)
    hook = item.config.hook.pytest_report_to_serializable
    is_xfail = call.excinfo is not None and isinstance(call.excinfo.value, pytest.xfail.Exception)
    return {
        "report": hook(config=item.config, report=report),
        "text": str(call.excinfo.value) if is_xfail and call.excinfo else report.longreprtext,
        "is_xfail": is_xfail,
        "warnings": [
            (str(each.message), each.category.__module__, each.category.__name__, each.filename, each.lineno)
            for each in warned
        ],
        "properties": item.user_properties,
    }


def _call(item: pytest.Function, function: Callable[[], object]) -> None:
    """Calls a test's function; an error of autofit becomes its sentence and the line of the test."""
    message = ""
    try:
        function()
    except AutofitError as error:
        frames = traceback.extract_tb(error.__traceback__)
        line = next((each.lineno for each in reversed(frames) if each.filename == str(item.path)), None)
        message = f"{item.path}:{line}: {error}" if line else str(error)
    if message:
        pytest.fail(message, pytrace=False)


def _take_over(item: pytest.Function, result: dict[str, Any]) -> None:
    """Ends a test as it ended in the fork, with its warnings and properties."""
    for message, module, name, file, line in result["warnings"]:
        category = getattr(sys.modules.get(module), name, UserWarning)  # unknown if imported in the fork
        warnings.warn_explicit(message, category, file, line)
    item.user_properties[:] = [(name, value) for name, value in result["properties"]]
    hook = item.config.hook.pytest_report_from_serializable
    report = hook(config=item.config, data=result["report"])
    if result["is_xfail"]:
        pytest.xfail(result["text"])
    if report.skipped:
        report.longrepr = tuple(report.longrepr)  # JSON has lists alone
        item.stash[report_of_fork] = report
        pytest.skip(report.longrepr[2])
    if report.failed:
        item.stash[report_of_fork] = report
        pytest.fail(result["text"], pytrace=False)


def _in_fork(run: Callable[[], dict[str, Any]]) -> tuple[str, int]:
    """Result of a function that runs in a fork of this process, and the fork's wait status.

    Returns:
        JSON of the function's result, empty if the fork died before; and the status of `os.waitpid`.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of threads. The fork uses none of this process's, and no lock that they may hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        os.close(reading)
        _answer_and_end(run, writing)
    os.close(writing)
    try:
        text = b"".join(iter(functools.partial(os.read, reading, _CHUNK_BYTES), b""))
    except BaseException:  # such as an interruption, or the time limit of a plugin
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise
    finally:
        os.close(reading)
    return text.decode(), os.waitpid(process, 0)[1]


def _answer_and_end(run: Callable[[], dict[str, Any]], writing: int) -> NoReturn:
    """Writes a function's result to a pipe, and ends this process without the exit handlers of its parent."""
    code = 1
    try:
        die_with_parent()
        rest = memoryview(json.dumps(run(), default=str).encode())
        sys.stdout.flush()
        sys.stderr.flush()
        while rest:
            rest = rest[os.write(writing, rest) :]
        code = 0
    except BaseException as error:  # noqa: BLE001 - nothing of pytest may run on in the fork
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name
