"""Fixtures of the whole suite."""

from __future__ import annotations

import functools
import gc
import os
import pathlib
import sqlite3
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import event
from sqlalchemy.engine import Engine

# Threads that wait for work give their core to others: files run side by side, and so do their children.
# Read when PyTorch is imported, so set before.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

pytest.register_assert_rewrite("tests.conformance.dispatcher", "tests.conformance.searches")

from autofit_workers.replay.plans import cudnn_plans  # noqa: E402
from autofit_workers.trials.run import close_predictor  # noqa: E402
from tests.marks import CRD_FOLDER_VARIABLE, marking  # noqa: E402 - what is asserted in is rewritten first
from tests.workers.replay.plan_servers import servers  # noqa: E402

# The settings refuse AUTOFIT_… variables that they do not know, in every process that a test starts.
if "AUTOFIT_CRD_DIR" in os.environ:
    os.environ[CRD_FOLDER_VARIABLE] = os.environ.pop("AUTOFIT_CRD_DIR")


# No property fails for the speed of a machine that does other work beside.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Files that take minutes, the longest first: the last to begin would be waited for by itself where tests
# run side by side, and these wait more than they compute.
_SLOW = (
    "tests/install/",
    "tests/service/",
    "tests/autofit/jobs/test_ray_jobs.py",
    "tests/faults/",
    "tests/conformance/",
    "tests/autofit/dispatch/",
    "tests/autofit/test_api.py",
    "tests/workers/replay/curve/",
    "tests/workers/scripts/",
)


def _place(item: pytest.Item) -> int:
    return next((place for place, path in enumerate(_SLOW) if item.nodeid.startswith(path)), len(_SLOW))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place)


@pytest.fixture(scope="module")
def warm_tracer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Has the predicting processes of a file's tests forked by one process, where this system can do so.

    They answer alike (tests/workers/process/test_warm_tracer.py), and PyTorch is imported once.
    """
    from autofit_workers.process.warm_tracer import WarmTracer, of_this_process
    from autofit_workers.trials import isolate

    try:
        of_this_process()
    except OSError:
        yield
        return
    tracer = WarmTracer(tmp_path_factory.mktemp("warm"), of_this_process)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolate, "_warm_tracer", tracer)
        tracer.was_missed = True
        before = psutil.Process().children()
        isolate.leave_warm_tracer(lambda: None)
        started = [child for child in psutil.Process().children() if child not in before]
        yield
    for child in started:  # none where memory is short
        child.kill()
        os.waitpid(child.pid, 0)


@pytest.fixture(scope="module", autouse=True)
def _look_for_garbage_of_the_file_alone() -> None:
    """Freezes the garbage collector's objects of earlier files, which cost seconds per collection."""
    import hypothesis  # noqa: F401 - it warns where it is imported later, and finds no referrers

    gc.collect()
    gc.freeze()


# By it coverage begins in child processes, whose imports of PyTorch then take twice as long.
_CHILDRENS_COVERAGE = "COVERAGE_PROCESS_CONFIG"


@functools.cache
def _childrens_coverage() -> str | None:
    return os.environ.get(_CHILDRENS_COVERAGE)


@pytest.fixture(scope="module", autouse=True)
def _cover_the_children_of_tests_of_workers_alone(request: pytest.FixtureRequest) -> None:
    """Turns coverage of child processes on for tests/workers only, since children run `autofit_workers`."""
    config = _childrens_coverage()
    covers = request.path.is_relative_to(pathlib.Path(__file__).parent / "workers")
    if config is None or covers == (_CHILDRENS_COVERAGE in os.environ):
        return
    close_predictor()  # the warm process began with the coverage of others
    if covers:
        os.environ[_CHILDRENS_COVERAGE] = config
    else:
        del os.environ[_CHILDRENS_COVERAGE]


@pytest.fixture(scope="session", autouse=True)
def _let_the_last_children_end_by_themselves() -> Iterator[None]:
    """Ends the warm child at the end of the session, since coverage is saved when a process ends."""
    yield
    close_predictor()


@event.listens_for(Engine, "connect")
def _leave_writing_to_the_system(connection: object, _record: object) -> None:
    """Turns SQLite's synchronous writes off: only a crash of the machine would lose data."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(autouse=True)
def state_dir(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Gives every test a state directory of its own."""
    path = tmp_path / "state"
    monkeypatch.setenv("AUTOFIT_STATE_DIR", str(path))
    return path


@pytest.fixture(scope="module")
def mark() -> Iterator[str]:
    """Marks the processes that a module's tests start, their descendants too; the mark's value."""
    with marking() as value:
        yield value


@pytest.fixture
def no_server() -> Iterator[None]:
    """Ends processes of libcudnn before and after a test, so that the test's own can be counted."""
    cudnn_plans._server.close()
    assert servers() == []
    yield
    cudnn_plans._server.close()
    assert servers() == []
