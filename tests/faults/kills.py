"""Searches whose processes are killed at random moments, and what is left of them.

    python tests/faults/kills.py --kills 200 --seed 1 [--at-once 1] [--record kills.jsonl] [--minutes 60]

Each kill is a search of its own, measured on the CPU by way of a Ray cluster that it starts: a process is
sent a signal at a random moment, the search ends or goes on, and where it has no answer yet the same command
resumes it. The seed decides the kills: of every 18, each of SIGKILL, SIGTERM and SIGINT goes once to each of

    coordinator   the command itself
    trial         the process that runs a size
    worker        Ray's, which supervises it
    raylet, gcs   the servers of the cluster
    database      PostgreSQL, where the study is; it is started again

Held against the same search without a fault: the answer; that no outcome that was in the study is lost; that
no process is alive 15 s after the first end, and no file of ours or Ray's left where temporary files go; that
SIGTERM and SIGINT end the coordinator in 130, the loss of a server in 5, within 10 s and with the document.

The record is continued: kills that it has are not made again. Exits with 1 where one of them had a problem.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from autofit.dispatch.processes import is_alive
from autofit_workers.spec.protocol import TrialOutcome
from tests.conformance.dispatcher import marked_processes
from tests.conformance.searches import Finished, Search, finished
from tests.marks import MARK
from tests.postgres import Postgres, running_postgres

TARGETS = ("coordinator", "trial", "worker", "raylet", "gcs", "database")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
GONE_SECONDS = 15.0  # from the end of a search to the end of all of its processes
END_SECONDS = 10.0  # from a signal, or a server's death, to the end of the command

_LOOK_SECONDS = 0.05
_ENDING = ("coordinator", "raylet", "gcs")  # without these no command goes on
_LOST = "outcomes that were in the study are gone"
_NEVER_ENDED = -1  # in place of an exit code
_DATABASE_AWAY_SECONDS = 2.0
_EARLIEST_SECONDS = 0.15  # before that it is Python that starts


@dataclass(frozen=True)
class Kill:
    """Which process gets which signal when.

    Attributes:
        moment: of a whole search, as a share of what it does: two parts for what comes before the first
            trial, and one for each trial. A process that is not there yet is waited for.
    """

    number: int
    target: str
    signal: signal.Signals
    moment: float


def kills_of(seed: int) -> Iterator[Kill]:
    """The kills that a seed stands for, without end."""
    for block in itertools.count():
        rng = random.Random(f"{seed}-{block}")
        pairs = list(itertools.product(TARGETS, SIGNALS))
        rng.shuffle(pairs)
        for place, (target, number) in enumerate(pairs):
            yield Kill(block * len(pairs) + place, target, number, rng.random())


@dataclass(frozen=True)
class Reference:
    """The search without a fault.

    Attributes:
        first_seconds: from its start to that of its first trial.
        trial_seconds: for each trial.
    """

    answer: tuple[int, int | None]
    num_trials: int
    first_seconds: float
    trial_seconds: float

    def await_moment(self, moment: float, command: _Command) -> None:
        """Waits until a command is as far as the moment says, or has ended."""
        part = moment * (2 + self.num_trials)
        num_begun = max(0, int(part) - 1)  # trials
        while command.num_begun() < num_begun and command.process.poll() is None:
            time.sleep(_LOOK_SECONDS)
        seconds = (part - num_begun - 1) * self.trial_seconds if num_begun else part / 2 * self.first_seconds
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(max(seconds, 0 if num_begun else _EARLIEST_SECONDS))


@dataclass(frozen=True)
class Report:
    """What became of a search.

    Attributes:
        came_too_late: whether it had ended before the process was there.
        code: its first exit code.
        end_seconds: from the signal to its end.
        problems: what should not be, in words.
    """

    kill: Kill
    came_too_late: bool
    code: int
    end_seconds: float
    num_kept: int
    problems: tuple[str, ...]

    def to_dict(self, seed: int) -> dict[str, Any]:
        kill = dataclasses.asdict(self.kill) | {"signal": self.kill.signal.name}
        return {"seed": seed, **kill, **{k: v for k, v in dataclasses.asdict(self).items() if k != "kill"}}


class _Tried:
    """A search in a folder of its own, with a mark on its processes and its own place for temporary files."""

    def __init__(self, folder: Path, storage: str | None) -> None:
        options = {} if storage is None else {"storage": storage}
        self.search = Search(folder, "healthy", **options)
        self.mark = uuid.uuid4().hex
        self.place = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))  # short, because sockets are below it

    def start(self) -> subprocess.Popen[str]:
        place = str(self.place)
        inductor = str(self.search.path / "inductor")  # PyTorch's cache, which it means to keep
        environment = {MARK: self.mark, "TMPDIR": place, "RAY_TMPDIR": place}
        return self.search.start(environment={**environment, "TORCHINDUCTOR_CACHE_DIR": inductor})

    def processes(self) -> list[psutil.Process]:
        return [process for process in marked_processes(self.mark) if is_alive(process)]

    def outlived(self) -> list[str]:
        """The processes that are alive after the time that they have to end."""
        give_up = time.monotonic() + GONE_SECONDS
        while (alive := self.processes()) and time.monotonic() < give_up:
            time.sleep(_LOOK_SECONDS)
        names = [_command(process) for process in alive]
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return names

    def left_behind(self) -> list[str]:
        """The temporary files that are left, which are removed."""
        left = sorted(entry.name for entry in self.place.iterdir())
        shutil.rmtree(self.place)
        self.place.mkdir()
        return left

    def close(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)


def reference(folder: Path) -> Reference:
    """Runs the search once as it is."""
    tried = _Tried(folder, None)
    try:
        begin = time.monotonic()
        coordinator = tried.start()
        while not tried.search.ran:
            assert coordinator.poll() is None
            time.sleep(_LOOK_SECONDS)
        first = time.monotonic()
        end = finished(coordinator)
        num_trials = len(tried.search.ran)
        assert tried.outlived() == []
        left = tried.left_behind()
        assert left == [], left
        return Reference(end.answer, num_trials, first - begin, (time.monotonic() - first) / num_trials)
    finally:
        tried.close()


def try_kills(
    kills: Sequence[Kill], normal: Reference, folder: Path, postgres: Postgres | None
) -> list[Report]:
    """Makes kills of one search, in their order, and resumes it to its end.

    A kill is made in the command that resumes the search after the one before, or in the same where that
    goes on. What is wrong with a command's end is reported of all kills that were made in it.

    Args:
        postgres: has the study where one of the kills is of the database; nobody else uses it meanwhile.
    """
    in_database = any(kill.target == "database" for kill in kills)
    assert not in_database or postgres is not None
    storage = postgres.new_database(f"kill{kills[0].number}") if in_database and postgres else None
    tried = _Tried(folder, storage)
    try:
        return _tried(kills, normal, tried, postgres if in_database else None)
    finally:
        tried.outlived()
        tried.close()


def _tried(
    kills: Sequence[Kill], normal: Reference, tried: _Tried, postgres: Postgres | None
) -> list[Report]:
    reports: list[Report] = []
    kept: list[TrialOutcome] = []
    while True:
        made, end = _command_with(kills[len(reports) :], normal, tried, postgres)
        lost = [] if _outcomes(tried.search)[: len(kept)] == kept else [_LOST]
        kept = _outcomes(tried.search)
        if is_last := len(reports) + len(made) == len(kills):
            if end.code != 0:
                end = finished(tried.start())
                lost += [f"alive after the end: {command}" for command in tried.outlived()]
                lost += [f"left behind by the resumed: {name}" for name in tried.left_behind()]
            lost += [*_wrong_with_answer(normal, end), *_lost(tried.search, kept)]
        reports += [
            dataclasses.replace(report, num_kept=len(kept), problems=(*report.problems, *lost))
            for report in made
        ]
        if is_last:
            return reports


def _command_with(
    kills: Sequence[Kill], normal: Reference, tried: _Tried, postgres: Postgres | None
) -> tuple[list[Report], Finished]:
    """Runs the command once, and makes the next kills, as long as it goes on after them."""
    problems: list[str] = []
    command = _Command(tried)
    sent: list[tuple[Kill, bool, float]] = []
    for kill in kills:
        is_sent = _send(kill, normal, tried, command, postgres)
        sent.append((kill, is_sent, time.monotonic()))
        if kill.target == "database" and is_sent:
            assert postgres is not None
            _start_again(postgres, command)
        if not is_sent or kill.target in _ENDING or command.is_over():
            break
    end = command.finished()
    if len(sent) > 1 and not sent[-1][1] and end.code != 0:
        sent.pop()  # by a kill before it the command ended: it is made in the next one
    problems += [f"alive after {GONE_SECONDS:g} s: {command}" for command in tried.outlived()]
    problems += [f"left behind: {name}" for name in tried.left_behind()]
    if postgres is not None and not postgres.is_running():
        postgres.start()
    last, is_sent, at = sent[-1]
    if is_sent:
        problems += _wrong_with_end(last, end, command.ended - at)
    reports = [
        Report(kill, not is_sent, end.code, round(command.ended - at, 2), 0, tuple(problems))
        for kill, is_sent, at in sent
    ]
    return reports, end


class _Command:
    """A command of a search, whose end is waited for in a thread, so that its moment is known."""

    def __init__(self, tried: _Tried) -> None:
        self.ended = 0.0
        self._end: Finished | None = None
        self._error: BaseException | None = None
        self._search = tried.search
        self._num_before = len(tried.search.ran)
        self.process = tried.start()
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self._end = finished(self.process)
        except AssertionError as error:  # it never ends
            self._error = error
        self.ended = time.monotonic()

    def num_begun(self) -> int:
        """How many trials it has begun."""
        return len(self._search.ran) - self._num_before

    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def finished(self) -> Finished:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._end is not None
        return self._end


def _send(
    kill: Kill,
    normal: Reference,
    tried: _Tried,
    command: _Command,
    postgres: Postgres | None,
) -> bool:
    """Sends the signal when its moment has come and its process is there; False if the search ended first."""
    normal.await_moment(kill.moment, command)
    while command.process.poll() is None:
        if kill.target == "database":
            assert postgres is not None
            postgres.signal(kill.signal)
            return True
        if kill.target == "coordinator":
            command.process.send_signal(kill.signal)
            return True
        victim = _victim(kill.target, tried.processes())
        with contextlib.suppress(psutil.NoSuchProcess):
            if victim is not None:
                victim.send_signal(kill.signal)
                return True
        time.sleep(_LOOK_SECONDS)
    return False


def _victim(target: str, processes: list[psutil.Process]) -> psutil.Process | None:
    """The process of the search that a target names, where there is one now."""
    servers = {"raylet": "raylet", "gcs": "gcs_server"}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if target in servers and process.name() == servers[target]:
                return process
            parent = process.parent()
            if (
                "autofit_workers.trials.child" in process.cmdline()
                and parent is not None
                and _is_rays_worker(parent)
            ):
                if target == "trial":
                    return process
                if target == "worker":
                    return parent
    return None


def _is_rays_worker(process: psutil.Process) -> bool:
    return "".join(process.cmdline()[:1]).startswith("ray::")


def _start_again(postgres: Postgres, command: _Command) -> None:
    """Starts a server again that was sent a signal; one that waits for its clients ends after them."""
    time.sleep(_DATABASE_AWAY_SECONDS)
    while postgres.is_running() and not command.is_over():
        time.sleep(_LOOK_SECONDS)
    if not postgres.is_running():
        postgres.start()


def _wrong_with_end(kill: Kill, end: Finished, seconds: float) -> list[str]:
    """What is wrong with how the first command ended."""
    if kill.target == "coordinator" and kill.signal is signal.SIGKILL:
        return [] if end.code == -signal.SIGKILL else [f"killed, and ended in {end.code}"]
    wrong = []
    try:
        document = end.document
    except ValueError:
        return [f"ended in {end.code} without a document: {end.out[:100]!r} {end.err[-300:]!r}"]
    if "Traceback" in end.err:
        wrong.append(f"a traceback: {end.err[-300:]!r}")
    if kill.target == "coordinator":
        # Of a signal while the answer is printed, that is the document; one after it comes too late.
        if end.code != 130 and document["schema"] != "autofit.tune/1":
            wrong.append(f"ended in {end.code}: {document.get('message')}")
        if end.code == 130 and document.get("kind") not in ("interrupted", None):
            wrong.append(f"130 with {document}")
    elif end.code not in (0, 5):
        wrong.append(f"ended in {end.code}: {document.get('message')}")
    is_to_end = kill.target == "coordinator" or (kill.target in ("raylet", "gcs") and end.code == 5)
    if is_to_end and seconds > END_SECONDS:
        wrong.append(f"ended after {seconds:.1f} s")
    return wrong


def _wrong_with_answer(normal: Reference, end: Finished) -> list[str]:
    if end.code != 0:
        return [f"resumed, it ended in {end.code}: {end.out[-300:]} {end.err[-300:]}"]
    return [] if end.answer == normal.answer else [f"the answer is {end.answer} and not {normal.answer}"]


def _outcomes(search: Search) -> list[TrialOutcome]:
    """What the study holds; nothing where it was not begun."""
    try:
        return search.outcomes()
    except KeyError:
        return []


def _lost(search: Search, kept: list[TrialOutcome]) -> list[str]:
    """The trials that the study lost."""
    lost = []
    if search.outcomes()[: len(kept)] != kept:
        lost.append(_LOST)
    trials = search.trials()
    if not all(trial.state.is_finished() for trial in trials):
        lost.append("a trial is still said to run")
    missing = Counter(search.ran) - Counter(trial.params["batch_size"] for trial in trials)
    return [*lost, *(f"a trial at {size} ran and is not in the study" for size in missing)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:120]
    except psutil.NoSuchProcess:
        return "(ended)"


def summary(seed: int, reports: list[dict[str, Any]]) -> str:
    """One line on all kills of a record."""
    problems = [problem for report in reports for problem in report["problems"]]
    sent = [report for report in reports if not report["came_too_late"]]
    ended = [r for r in sent if r["target"] == "coordinator" and r["signal"] != "SIGKILL"]
    right = [r for r in ended if r["code"] == 130 and r["end_seconds"] <= END_SECONDS]
    compared = [report for report in sent if report["code"] != _NEVER_ENDED]
    same = len(compared) - sum("answer is" in p or "resumed, it" in p for p in problems)
    return (
        f"{len(reports)} kills (seed {seed}; {len(reports) - len(sent)} came after the end): "
        f"same answer {same} of {len(compared)}, "
        f"{len(sent) - len(compared)} never ended, "
        f"{sum('study' in p or 'said to run' in p for p in problems)} trials lost, "
        f"{sum(p.startswith('alive') for p in problems)} processes after {GONE_SECONDS:g} s, "
        f"{sum(p.startswith('left') for p in problems)} folders left; "
        f"TERM and INT: {len(right)} of {len(ended)} in 130 with JSON within {END_SECONDS:g} s "
        f"(the longest {max((r['end_seconds'] for r in ended), default=0):.1f} s); "
        f"{sum(bool(r['problems']) for r in reports)} with a problem"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="begin no kill after so long")
    parser.add_argument("--record", type=Path, default=Path("kills.jsonl"))
    arguments = parser.parse_args()
    give_up = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    made = _read(arguments.record, arguments.seed)
    waiting = iter(
        [
            kill
            for kill in itertools.islice(kills_of(arguments.seed), arguments.kills)
            if kill.number not in {report["number"] for report in made}
        ]
    )
    lock = threading.Lock()

    def work(folder: Path, normal: Reference) -> None:
        with _postgres() as postgres:
            while give_up is None or time.monotonic() < give_up:
                with lock:
                    kill = next(waiting, None)
                if kill is None:
                    return
                if kill.target == "database" and postgres is None:
                    continue
                report = _guarded(kill, normal, folder / str(kill.number), postgres).to_dict(arguments.seed)
                shutil.rmtree(folder / str(kill.number), ignore_errors=True)
                with lock, arguments.record.open("a") as record:
                    made.append(report)
                    record.write(json.dumps(report) + "\n")
                    sys.stdout.write(json.dumps(report) + "\n")
                    sys.stdout.flush()

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
        # As many at once as later, so that they take as long.
        folders = [Path(folder, f"reference-{number}") for number in range(arguments.at_once)]
        normal, *_ = pool.map(reference, folders)
        for each in [pool.submit(work, Path(folder), normal) for _ in range(arguments.at_once)]:
            each.result()
    sys.stdout.write(summary(arguments.seed, made) + "\n")
    return 1 if any(report["problems"] for report in made) else 0


def _guarded(kill: Kill, normal: Reference, folder: Path, postgres: Postgres | None) -> Report:
    """One search that never ends is no reason to make no other kill."""
    try:
        (report,) = try_kills([kill], normal, folder, postgres)
    except AssertionError as error:
        return Report(kill, False, _NEVER_ENDED, -1.0, 0, (str(error)[-500:],))
    return report


@contextlib.contextmanager
def _postgres() -> Iterator[Postgres | None]:
    try:
        with running_postgres() as server:
            yield server
    except pytest.skip.Exception as missing:
        sys.stderr.write(f"no kills of a database: {missing}\n")
        yield None


def _read(record: Path, seed: int) -> list[dict[str, Any]]:
    if not record.exists():
        return []
    reports = [json.loads(line) for line in record.read_text().splitlines()]
    return [report for report in reports if report["seed"] == seed]


if __name__ == "__main__":
    sys.exit(main())
