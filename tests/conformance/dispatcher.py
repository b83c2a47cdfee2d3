"""What every dispatcher keeps to, with real trials; run against each implementation.

A test module of an implementation gives the fixtures `dispatcher`, one for the whole module, and
`open_dispatcher`, a function that makes another, and `constructor`, its source text.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from autofit.dispatch.base import Dispatcher
from autofit.errors import DispatchError
from autofit_workers.spec.protocol import Evidence, Probe, TrialOutcome, TrialSpec, Verdict, WorkloadRef
from autofit_workers.spec.pythons import arguments_for
from autofit_workers.spec.setup import Parallel, Setup
from tests.marks import MARK

ROOT = Path(__file__).parents[2]

DRIVER = """
import signal, sys
from autofit.dispatch.apart import RayApart
from autofit.dispatch.inline import InlineDispatcher
from autofit.dispatch.ray import RayDispatcher
from autofit_workers.spec.protocol import TrialSpec
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with {constructor} as dispatcher:
        dispatcher.submit(TrialSpec.from_json(sys.argv[1])).result()
except KeyboardInterrupt:
    sys.exit(130)
"""


class TrialFolder:
    """A copy of the workloads, and how to ask for them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        shutil.copy(Path(__file__).with_name("trials.py"), path)
        os.mkfifo(path / "hanging")

    def spec(self, attribute: str, **settings) -> TrialSpec:
        reference = WorkloadRef(kind="file", target=f"{self.path / 'trials.py'}:{attribute}")
        usual = {"batch_size": 4, "probe": Probe.CPU, "num_threads": 1, "deadline_seconds": 120.0}
        return TrialSpec(workload=reference, **{**usual, **settings})

    def wait_until_it_hangs(self) -> list[int]:
        """Returns the processes of the trial that hangs."""
        hanging = os.open(self.path / "hanging", os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert select.select([hanging], [], [], 100)[0], "the trial never came to its loss"
            return [int(pid) for pid in os.read(hanging, 100).split()]
        finally:
            os.close(hanging)


def survivors(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run after a while; a zombie, dead and waiting to be reaped, does not."""
    give_up = time.monotonic() + 20
    while alive := [process for process in processes if _runs(process)]:
        if time.monotonic() > give_up:
            break
        psutil.wait_procs(alive, timeout=0.05)
    return alive


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked_processes(mark: str) -> list[psutil.Process]:
    """The processes, other than this one, that inherited the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it ended meanwhile, or is another user's
    return found


def trial_processes(mark: str) -> list[psutil.Process]:
    """The trials among them: what a test leaves behind although its dispatcher lives on."""
    found = []
    for process in marked_processes(mark):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile; a zombie has no command either
            if "autofit_workers.trials.child" in process.cmdline():
                found.append(process)
    return found


class DispatcherConformance:
    def test_a_trial_that_fits_comes_back_with_what_it_measured(self, outcomes: dict[str, TrialOutcome]):
        outcome = outcomes["fits"]
        assert outcome.verdict is Verdict.FITS
        assert outcome.evidence is Evidence.MEASURED_CPU
        assert outcome.batch_size == 4
        assert outcome.steady.device_bytes > 0
        assert outcome.error is None

    def test_real_exhaustion_of_memory_is_oom(self, outcomes: dict[str, TrialOutcome]):
        assert outcomes["runs_out_of_memory"].verdict is Verdict.OOM

    def test_a_hang_past_the_deadline_is_timeout(self, outcomes: dict[str, TrialOutcome]):
        assert outcomes["hangs"].verdict is Verdict.TIMEOUT

    def test_a_killed_worker_is_lost(self, outcomes: dict[str, TrialOutcome]):
        assert outcomes["is_killed"].verdict is Verdict.LOST

    def test_an_exception_of_the_user_is_failed_with_the_users_traceback(
        self, outcomes: dict[str, TrialOutcome]
    ):
        outcome = outcomes["is_mistaken"]
        assert outcome.verdict is Verdict.FAILED
        assert outcome.error.kind == "user"
        assert "LookupError: no such layer" in outcome.error.message
        assert "trials.py" in outcome.error.traceback

    def test_ranks_run_together_and_each_has_its_peak(
        self, outcomes: dict[str, TrialOutcome], dispatcher: Dispatcher, trials: TrialFolder
    ):
        outcome = outcomes["two ranks"]
        if outcome.verdict is Verdict.LOST:  # beside five others; a search repeats such a trial once too
            setup = Setup(parallel=Parallel.parse("ddp:2"))
            outcome = dispatcher.submit(trials.spec("fits", setup=setup)).result()
        assert (outcome.verdict, outcome.parallel) == (Verdict.FITS, "ddp:2"), outcome.error
        assert [rank.rank for rank in outcome.ranks] == [0, 1]
        assert all(rank.peaks.device_bytes > 0 for rank in outcome.ranks)

    def test_no_process_outlives_its_trial(self, outcomes: dict[str, TrialOutcome], mark: str):
        assert len(outcomes) == 6
        assert trial_processes(mark) == []

    def test_capacity_and_devices_agree(self, dispatcher: Dispatcher):
        devices = dispatcher.devices()
        assert dispatcher.capacity(Probe.CPU) >= 1
        assert dispatcher.capacity(Probe.PREDICT) >= 1
        assert (dispatcher.capacity(Probe.CUDA) > 0) == (devices.num_gpus > 0)
        assert len(devices.names) <= devices.num_gpus

    def test_a_device_that_is_not_there_is_an_error_at_once(
        self, dispatcher: Dispatcher, trials: TrialFolder
    ):
        if dispatcher.devices().num_gpus:
            pytest.skip("this machine has a GPU")
        with pytest.raises(DispatchError, match="GPU"):
            dispatcher.submit(trials.spec("fits", probe=Probe.CUDA))

    def test_close_kills_what_runs_and_cancels_what_waits(
        self, open_dispatcher: Callable[[], Dispatcher], tmp_path: Path, mark: str
    ):
        trials = TrialFolder(tmp_path)
        with open_dispatcher() as dispatcher:
            running = dispatcher.submit(trials.spec("hangs"))
            waiting = [dispatcher.submit(trials.spec("fits")) for _ in range(2)]
            processes = [psutil.Process(pid) for pid in trials.wait_until_it_hangs()]
        for future in (running, *waiting):
            assert _was_cancelled_or_done(future)
        assert survivors([*processes, *trial_processes(mark)]) == []
        dispatcher.close()  # once more does no harm
        with pytest.raises(RuntimeError, match="after"):
            dispatcher.submit(trials.spec("fits"))

    def test_ctrl_c_leaves_no_process_behind_and_folders_named_like_ours_hide_nothing(
        self, constructor: str, tmp_path: Path, mark: str
    ):
        for package in ("workers", "autofit"):
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").write_text("raise ImportError('not ours')")
        trials = TrialFolder(tmp_path)
        mark = f"{mark}-driver"
        command = [sys.executable, *arguments_for(DRIVER.format(constructor=constructor))]
        driver = subprocess.Popen(
            [*command, trials.spec("hangs").to_json()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        trials.wait_until_it_hangs()
        # As a terminal does: every process of the foreground group, Ray's own among them.
        os.killpg(driver.pid, signal.SIGINT)
        stdout, stderr = driver.communicate(timeout=60)
        assert (stdout, stderr, driver.returncode) == ("", "", 130)
        assert marked_processes(mark) == []


def _was_cancelled_or_done(future: Future[TrialOutcome]) -> bool:
    try:
        future.result(timeout=0)
    except CancelledError:
        return True
    return future.done()
