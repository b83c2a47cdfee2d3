"""Whole searches through the command line, in processes that a test can kill; and what each keeps to.

A test module of an implementation gives the fixture `ended`, one for the whole module: `run_all` of at
least `SEARCHES`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType

import optuna
from optuna.trial import FrozenTrial

from autofit.study.storage import open_storage
from autofit_workers.spec.protocol import TrialOutcome, Verdict
from autofit_workers.spec.pythons import Self, arguments_for
from tests import commands
from tests.conformance.dispatcher import ROOT, survivors, trial_processes

# A process started in the background of a script ignores SIGINT, and so do its children.
_MAIN = """
import signal, sys
from autofit.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
# The console entry for one search after another, each a line of JSON on standard input: they share what
# costs the most, the process that imports PyTorch for predictions and the measurement of an idle trial.
_SEVERAL = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from autofit.cli import main
for line in sys.stdin:
    search = json.loads(line)
    os.chdir(search["folder"])
    os.environ["AUTOFIT_STATE_DIR"] = search["state"]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(search["arguments"])
    print(json.dumps([int(code), out.getvalue(), err.getvalue()]), flush=True)
"""
_STUDY = "mine"
# A workload of `tunable.py`, and the options that its search has beside the usual ones.
SEARCHES: dict[str, dict[str, str | None]] = {
    "hangs": {"max_batch": "2", "deadline": "6"},
    "healthy": {},
    "mistaken": {"max_batch": "2"},
}
_AT_ONCE = 2
_LONGEST_SECONDS = 250  # a search that takes longer never ends


class Finished(commands.Finished):
    """A search that ended."""

    @property
    def answer(self) -> tuple[int, int | None]:
        """The largest size that fits, and the next larger one that is known to fail; None at the cap."""
        assert self.code == 0, self.err
        (entry,) = self.document["frontier"]
        assert self.document["best"]["batch_size"] == entry["largest_batch"]
        assert entry["evidence"] == "measured-cpu"
        return entry["largest_batch"], entry["first_failing_batch"]


class Search:
    """A folder with the workloads and a study, and `autofit tune` on it.

    Args:
        path: the folder.
        attribute: the workload, of `tunable.py`.
        options: of the command, with `_` for `-`, over those that all searches share; None takes one
            of these away.
    """

    def __init__(self, path: Path, attribute: str, **options: str | None) -> None:
        path.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(__file__).with_name("tunable.py"), path)
        self.path = path
        usual = {
            "model": f"{path / 'tunable.py'}:{attribute}",
            "device": "cpu",
            "gpu_mem": "560M",
            "margin": "0%",
            "threads": "1",
            "max_batch": "64",
            "soak_steps": "0",
            "deadline": "120",
            "study": _STUDY,
            "storage": str(path / "study.journal"),
        }
        given = {**usual, **options}
        self.options = {name: value for name, value in given.items() if value is not None}

    @property
    def state(self) -> Path:
        """The state directory of its commands."""
        return self.path / "state"

    @property
    def arguments(self) -> list[str]:
        """What follows the command's name."""
        given = [(f"--{name.replace('_', '-')}", value) for name, value in self.options.items()]
        return ["tune", "--json", *(text for pair in given for text in pair)]

    def start(
        self,
        *,
        main: str = _MAIN,
        within: tuple[str, ...] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> subprocess.Popen[str]:
        """Starts the command, or another that is given the command as its last arguments.

        Args:
            main: the program, in place of the console entry.
            environment: variables over this process's own.
        """
        return subprocess.Popen(
            [*within, sys.executable, *arguments_for(main), *self.arguments],
            cwd=self.path,
            env={
                **os.environ,
                **environment,
                "PYTHONPATH": str(ROOT),
                "AUTOFIT_STATE_DIR": str(self.state),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *, main: str = _MAIN) -> Finished:
        return finished(self.start(main=main))

    def wait_until_it_hangs(self, seconds: float = 200) -> list[int]:
        """Returns the processes of the trial that hangs; the FIFO has to be made before it does."""
        hanging = os.open(self.path / "hanging", os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert select.select([hanging], [], [], seconds)[0], "no trial came to its loss"
            return [int(pid) for pid in os.read(hanging, 100).split()]
        finally:
            os.close(hanging)

    def will_hang(self) -> None:
        """Makes the FIFO by which a trial says that it hangs."""
        os.mkfifo(self.path / "hanging")

    @property
    def ran(self) -> list[int]:
        """The batch sizes of all processes that came to their first step, in their order."""
        file = self.path / "ran"
        return [int(line.split()[2]) for line in file.read_text().splitlines()] if file.exists() else []

    def trials(self) -> list[FrozenTrial]:
        """What the study holds, however its trials ended."""
        with contextlib.closing(open_storage(self.options["storage"], _STUDY)) as storage:
            return optuna.load_study(study_name=_STUDY, storage=storage.backend).trials

    def outcomes(self) -> list[TrialOutcome]:
        """The outcomes in the study, in the order in which they were asked for."""
        texts = [trial.user_attrs.get("outcome") for trial in self.trials()]
        return [TrialOutcome.from_json(text) for text in texts if text is not None]

    def verdicts(self) -> list[Verdict]:
        return [outcome.verdict for outcome in self.outcomes()]


def finished(process: subprocess.Popen[str]) -> Finished:
    """Waits for a search's end; one that never ends is killed, and fails its test."""
    try:
        out, err = process.communicate(timeout=_LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"the search did not end; it said: {err}") from None
    return Finished(process.returncode, out, err)


@dataclass(frozen=True)
class Ended:
    """A search that ended, and what it left in its folder."""

    search: Search
    finished: Finished


class _Coordinator:
    """A process that runs searches one after another; it ends with its `with` statement."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments_for(_SEVERAL)],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def run(self, search: Search) -> Finished:
        """Runs a search; where one never ends, the process is killed, and the test fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"folder": str(search.path), "state": str(search.state), "arguments": search.arguments}
        watchdog = threading.Timer(_LONGEST_SECONDS, self._kill)
        watchdog.start()
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        assert answer, f"{search.path.name} did not end; its process said: {self._log.read_text()}"
        return Finished(*json.loads(answer))

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._kill()
        out, _ = self._process.communicate(timeout=60)
        assert error is not None or (self._process.returncode, out) == (0, ""), self._log.read_text()


def run_all(
    folder: Path, searches: Mapping[str, Mapping[str, str | None]], **options: str
) -> dict[str, Ended]:
    """Runs searches in two processes.

    Args:
        options: of all of them, which say where trials run.
    """
    # One iterator for both: each takes the next search when it is free.
    waiting = iter([Search(folder / name, name, **own, **options) for name, own in searches.items()])
    ended: dict[str, Ended] = {}

    def run(number: int) -> None:
        place = folder / f"coordinator-{number}"
        place.mkdir()
        with _Coordinator(place) as coordinator:
            for search in waiting:
                ended[search.path.name] = Ended(search, coordinator.run(search))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for each in [pool.submit(run, number) for number in range(_AT_ONCE)]:
            each.result()
    return ended


def tries_by_verdict(search: Search) -> dict[Verdict, int]:
    """For each verdict, how often the size was tried that ended so most often; several may run at once."""
    tries = Counter((outcome.verdict, outcome.batch_size) for outcome in search.outcomes())
    return {verdict: max(num for (v, _), num in tries.items() if v is verdict) for verdict, _ in tries}


class SearchConformance:
    def test_no_search_leaves_a_process_of_a_trial_behind(self, ended: dict[str, Ended], mark: str):
        assert ended.keys() >= SEARCHES.keys()
        assert survivors(trial_processes(mark)) == []

    def test_every_trial_that_began_is_in_the_study_and_none_still_runs(self, ended: dict[str, Ended]):
        for name, end in ended.items():
            assert all(trial.state.is_finished() for trial in end.search.trials()), name
            in_study = Counter(trial.params["batch_size"] for trial in end.search.trials())
            assert Counter(end.search.ran) <= in_study, name

    def test_a_healthy_search_finds_a_size_that_ran_and_a_next_one_that_failed(self, ended: dict[str, Ended]):
        end = ended["healthy"]
        fits, fails = end.finished.answer
        assert fails == fits + 1
        verdicts = {outcome.batch_size: outcome.verdict for outcome in end.search.outcomes()}
        assert (verdicts[fits], verdicts[fails]) == (Verdict.FITS, Verdict.OOM)

    def test_a_hang_is_ended_at_its_deadline_and_exits_with_5_after_a_retry(self, ended: dict[str, Ended]):
        end = ended["hangs"]
        assert end.finished.code == 5
        assert "within 6 s" in end.finished.document["message"]
        assert tries_by_verdict(end.search) == {Verdict.TIMEOUT: 2}

    def test_an_exception_of_the_user_ends_the_search_at_once_with_the_users_traceback(
        self, ended: dict[str, Ended]
    ):
        end = ended["mistaken"]
        assert end.finished.code == 4
        assert end.finished.document["kind"] == "workload"
        assert "LookupError: no such layer" in end.finished.document["message"]
        assert f'File "{end.search.path / "tunable.py"}"' in end.finished.err
        assert set(end.search.verdicts()) == {Verdict.FAILED}
