"""The Ray dispatcher in a process of its own, by conformance and by the deaths of what it consists of."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from autofit.dispatch.apart import RayApart
from autofit.errors import DispatchError
from autofit_workers.spec.protocol import Probe
from autofit_workers.spec.pythons import arguments_for
from autofit_workers.trials.isolate import ended_by
from autofit_workers.trials.supervision import StoppedError
from tests.conformance.dispatcher import DispatcherConformance, TrialFolder, marked_processes, survivors
from tests.marks import marking

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True, scope="module")
def place() -> Iterator[Path]:
    """Where these clusters have their private folders: a short path, as a socket's may not be long."""
    with tempfile.TemporaryDirectory(prefix="autofit-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def dispatcher(mark: str, place: Path) -> Iterator[RayApart]:
    environment, before = dict(os.environ), set(place.iterdir())
    with RayApart() as dispatcher:
        assert dict(os.environ) == environment
        (folder,) = set(place.iterdir()) - before
        assert folder.stat().st_mode & 0o777 == 0o700
        yield dispatcher
    assert marked_processes(mark) == []
    assert not folder.exists()


@pytest.fixture
def open_dispatcher(dispatcher: RayApart) -> Callable[[], RayApart]:
    return RayApart


@pytest.fixture
def constructor() -> str:
    return "RayApart()"


class TestConformance(DispatcherConformance):
    pass


def test_a_search_through_it_never_imports_ray(dispatcher: RayApart):
    assert dispatcher.capacity(Probe.CPU) >= 1
    code = "import sys; from autofit.dispatch.apart import RayApart\n"
    code += "with RayApart() as ray_apart: sys.exit('ray' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, *arguments_for(code)]) == 0


@pytest.mark.parametrize(
    ("server", "sent"),
    [("gcs_server", signal.SIGKILL), ("gcs_server", signal.SIGTERM), ("raylet", signal.SIGKILL)],
)
def test_the_death_of_a_server_fails_what_runs_and_what_is_asked_and_leaves_nothing(
    tmp_path: Path, place: Path, server: str, sent: signal.Signals
):
    trials, before = TrialFolder(tmp_path), set(place.iterdir())
    with marking() as mark:
        with RayApart() as dispatcher:
            running = dispatcher.submit(trials.spec("hangs"))
            trial = [psutil.Process(pid) for pid in trials.wait_until_it_hangs()]
            (victim,) = (process for process in marked_processes(mark) if process.name() == server)
            victim.send_signal(sent)
            died = f"{server} of the Ray cluster on this machine died"
            with pytest.raises(DispatchError, match=died):
                running.result(timeout=30)
            with pytest.raises(DispatchError, match=died):
                dispatcher.capacity(Probe.CPU)
        assert survivors([*trial, *marked_processes(mark)]) == []
    assert set(place.iterdir()) <= before


@pytest.mark.parametrize("which", ["host", "keeper"])
def test_the_death_of_the_process_that_speaks_with_ray_or_of_its_keeper_leaves_nothing_either(
    tmp_path: Path, place: Path, which: str
):
    trials, before = TrialFolder(tmp_path), set(place.iterdir())
    with marking() as mark:
        with RayApart() as dispatcher:
            running = dispatcher.submit(trials.spec("hangs"))
            trial = [psutil.Process(pid) for pid in trials.wait_until_it_hangs()]
            keeper = psutil.Process(dispatcher._process.pid)
            (host,) = keeper.children()
            (host if which == "host" else keeper).kill()
            with pytest.raises(DispatchError, match="the process that speaks with Ray ended"):
                running.result(timeout=30)
        assert survivors([*trial, *marked_processes(mark)]) == []
    assert set(place.iterdir()) <= before


def test_a_connection_that_nobody_wants_any_more_is_given_up_at_once(mark: str, place: Path):
    unwanted, before = threading.Event(), set(place.iterdir())

    def connect() -> RayApart:
        with ended_by(unwanted):
            return RayApart()

    with marking() as own, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect)
        while not marked_processes(own):
            assert not connecting.done()
        unwanted.set()
        with pytest.raises(StoppedError):
            connecting.result(timeout=30)
        assert survivors(marked_processes(own)) == []
    assert set(place.iterdir()) <= before


def test_the_death_of_the_head_while_the_cluster_starts_leaves_nothing_either(place: Path):
    before = set(place.iterdir())
    with marking() as mark, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(RayApart)
        while (head := _named("gcs_server", mark)) is None or _named("raylet", mark) is None:
            assert not connecting.done()
        head.kill()
        with pytest.raises(DispatchError, match="gcs_server of the Ray cluster on this machine died"):
            connecting.result(timeout=30).devices()  # where it was connected just before
        if connecting.exception() is None:
            connecting.result().close()
        assert survivors(marked_processes(mark)) == []
    assert set(place.iterdir()) <= before


def _named(name: str, mark: str) -> psutil.Process | None:
    return next((process for process in marked_processes(mark) if process.name() == name), None)
