"""What `autofit serve` costs on a storage with 200 jobs, a study of 10,000 trials and 500 small studies.

    python tests/bench/serve_load.py [--trials 10000] [--jobs 200] [--studies 500] [--scrapes 200]
                                     [--crowd 60] [--share 1] [journal sqlite postgresql]

A real study and its real trial are copied: what is read is what searches write. Then `autofit
serve` itself is started, with an empty storage and with the full one:

- a scrape of /metrics, while nothing else happens and while trials are told; beside it the same of
  an empty storage, measured in the same run
- the first read of all, and a read when nothing has changed
- a crowd, or `--share` of it, for `--crowd` seconds: 100 clients that scrape once a second each, 1,000 that
  connect and say nothing and 100 that send a byte now and then, see crowd.py; beside it one client alone,
  in the same run
- resident memory of the process, the most of it, and the lines that it logged

Exits with 1 where the median scrape took more than 50 ms, or the crowd's 99th percentile more than 20
times the median of one client alone, a scrape failed, the memory is above 250 MB or a line a minute was
logged. The slowest is shown beside that of the empty storage: on a machine with other work it says
more of that work.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import psutil
from optuna.trial import FrozenTrial, TrialState, create_trial

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from autofit.jobs.queue import JobQueue, JobSpec
from autofit.search.space import SearchSpace
from autofit.study.search_record import record_opening
from autofit.study.storage import open_storage, quiet_optuna
from autofit.study.study import TuningStudy
from autofit_workers.spec.knobs.conv_algo import CONV_ALGOS
from autofit_workers.spec.knobs.memory_format import MEMORY_FORMATS
from autofit_workers.spec.knobs.optimizer import OPTIMIZERS
from autofit_workers.spec.knobs.optimizer_impl import OPTIMIZER_IMPLS
from autofit_workers.spec.knobs.precision import PRECISIONS
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict
from tests.bench import crowd, storage_copies
from tests.postgres import running_postgres

GATE_SECONDS = 0.050
GATE_RATIO = 20
GATE_BYTES = 250_000_000

_MIB = 2**20
_LARGE, _SMALL, _NUM_SMALL = "large", "small", 20
_FOUR_SETTINGS = {"conv_algo": CONV_ALGOS}
_MANY_SETTINGS = {
    **_FOUR_SETTINGS,
    "precision": PRECISIONS,
    "memory_format": MEMORY_FORMATS,
    "optimizer": OPTIMIZERS,
    "optimizer_impl": OPTIMIZER_IMPLS,
}
_INTERVAL_SECONDS = 0.5
_SETTINGS = {
    "workload": {"kind": "builtin", "target": "resnet50"},
    "probe": "cuda",
    "mode": None,
    "num_threads": None,
    "versions": {"torch": "2.13.0", "cuda": "13.0", "cudnn": "9.20"},
}


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured with one storage; seconds and bytes."""

    backend: str
    fill_seconds: float
    first_read_seconds: float
    idle_read_seconds: float
    scrape_p50: float
    scrape_max: float
    busy_scrape_p50: float
    busy_scrape_max: float
    empty_scrape_p50: float
    empty_scrape_max: float
    resident_bytes: int
    crowd: crowd.Crowd
    num_lines: int
    observed_seconds: float

    @property
    def is_within(self) -> bool:
        return (
            max(self.scrape_p50, self.busy_scrape_p50) <= GATE_SECONDS
            and self.crowd.ratio <= GATE_RATIO
            and not self.crowd.num_failed
            and self.resident_bytes <= GATE_BYTES
            and self.num_lines <= self.observed_seconds / 60
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("backends", nargs="*", default=["journal", "sqlite", "postgresql"])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--studies", type=int, default=500)
    parser.add_argument("--scrapes", type=int, default=200, help="in each state")
    parser.add_argument("--crowd", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--share", type=float, default=1.0, help="of the crowd")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(name, options) for name in options.backends]
    print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2) if options.json else table(rows))
    outside = [row.backend for row in rows if not row.is_within]
    print(f"outside of the limits: {', '.join(outside) or 'none'}", file=sys.stderr)
    return 1 if outside else 0


def measure(backend: str, options: argparse.Namespace) -> Row:
    """Fills a storage and serves it."""
    num_trials, num_jobs, num_studies = options.trials, options.jobs, options.studies
    with storage_of(backend) as (full, empty):
        started = time.monotonic()
        fill(full, num_trials, num_jobs, num_studies)
        fill_seconds = time.monotonic() - started
        print(f"{backend}: filled in {fill_seconds:.0f} s", file=sys.stderr)
        open_storage(empty, "empty").close()
        with served(empty) as server:
            empty_scrapes = server.scrapes(options.scrapes)
        with served(full) as server:
            samples = server.samples()
            assert (
                samples['autofit_trials_total{probe="cuda",verdict="FITS"}']
                == num_trials + num_studies * _NUM_SMALL
            )
            assert samples['autofit_jobs{state="queued"}'] == num_jobs
            first_read = samples["autofit_storage_read_duration_seconds"]
            server.await_reads(4)
            idle_read = server.samples()["autofit_storage_read_duration_seconds"]
            scrapes = server.scrapes(options.scrapes)
            with crowd.beside(tell_until, full):
                busy_scrapes = server.scrapes(options.scrapes)
            started = time.monotonic()
            together = crowd.measure(server.port, options.crowd, options.share)
            observed_seconds = time.monotonic() - started
            resident_bytes = server.peak_bytes()
    return Row(
        backend=backend,
        fill_seconds=fill_seconds,
        first_read_seconds=first_read,
        idle_read_seconds=idle_read,
        scrape_p50=statistics.median(scrapes),
        scrape_max=max(scrapes),
        busy_scrape_p50=statistics.median(busy_scrapes),
        busy_scrape_max=max(busy_scrapes),
        empty_scrape_p50=statistics.median(empty_scrapes),
        empty_scrape_max=max(empty_scrapes),
        resident_bytes=resident_bytes,
        crowd=together,
        num_lines=len(server.lines_after_end),
        observed_seconds=observed_seconds,
    )


@contextlib.contextmanager
def storage_of(backend: str) -> Iterator[tuple[str, str]]:
    """Two new storages of a kind."""
    if backend == "postgresql":
        with running_postgres() as server:
            yield server.new_database("full"), server.new_database("empty")
        return
    with tempfile.TemporaryDirectory(prefix="serve-load-") as folder:
        names = [str(Path(folder) / name) for name in ("full", "empty")]
        full, empty = (f"sqlite:///{n}.db" if backend == "sqlite" else f"{n}.journal" for n in names)
        yield full, empty


def fill(storage: str, num_trials: int, num_jobs: int, num_studies: int) -> None:
    """One study of `num_trials`, `num_studies` of 20 trials, and jobs that wait."""
    with quiet_optuna():
        told(storage, _LARGE, _MANY_SETTINGS)
        told(storage, _SMALL, _FOUR_SETTINGS)
        small = {f"{_SMALL}-{number}": _NUM_SMALL for number in range(1, num_studies)}
        storage_copies.fill(storage, _SMALL, {_SMALL: _NUM_SMALL, **small})
        storage_copies.fill(storage, _LARGE, {_LARGE: num_trials})
        with JobQueue.open(storage) as queue:
            for number in range(num_jobs):
                options = {"model": "resnet50", "gpu": "t4", "max-batch": str(number)}
                queue.enqueue(f"resnet50-t4-{number:012}", JobSpec(options=options, workload="resnet50"))


def told(storage: str, name: str, choices: dict[str, tuple[str, ...]]) -> None:
    """Makes a study with one trial, asked for and told as the tuner does, an hour ago."""
    space = SearchSpace(choices=choices, max_batch=65536)
    study = TuningStudy.open(
        space,
        budget_bytes=15 * 2**30,
        settings=_SETTINGS,
        name=name,
        storage=storage,
        workload=name.partition("-")[0],
        gpu="t4",
    )
    with study:
        ask = study.ask(num_workers=8)
        assert ask is not None
        peaks = Peaks(10 * ask.batch_size * _MIB, 11 * ask.batch_size * _MIB, 12 * ask.batch_size * _MIB)
        outcome = TrialOutcome(
            verdict=Verdict.FITS,
            evidence=Evidence.MEASURED,
            device=Device(kind="cuda", name="Tesla T4", driver="570.1"),
            batch_size=ask.batch_size,
            knobs=ask.knobs,
            first_step=peaks,
            steady=peaks,
            evaluation=peaks,
            checkpoint=peaks,
            num_steps_done=4,
            context_bytes=300 * _MIB,
            step_seconds=0.2,
            wall_seconds=7.0,
            environment={"torch": "2.13.0", "cuda": "13.0", "cudnn": "9.20", "threads": "8"},
        )
        study.tell(ask.trial_number, outcome, predicted_bytes=11 * ask.batch_size * _MIB)
        opened = dataclasses.replace(study.opened, opened_seconds=study.opened.opened_seconds - 3600)
    storage_of_it = open_storage(storage, name)
    backend = storage_of_it.backend
    record_opening(backend, backend.get_study_id_from_name(name), opened)
    storage_of_it.close()


def copied(template: FrozenTrial, *, batch_size: int) -> FrozenTrial:
    """A trial that tells the same of another size."""
    outcome = json.loads(template.user_attrs["outcome"])
    return create_trial(
        state=TrialState.COMPLETE,
        value=float(batch_size),
        params={**template.params, "batch_size": batch_size},
        distributions=template.distributions,
        user_attrs={**template.user_attrs, "outcome": json.dumps({**outcome, "batch_size": batch_size})},
        system_attrs=template.system_attrs,
    )


class Server:
    """A running `autofit serve`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        line = process.stderr.readline()
        self.port = int(line.rpartition(":")[2].partition("/")[0])
        self.process = psutil.Process(process.pid)
        self.lines_after_end: list[str] = []

    def get(self, path: str) -> tuple[int, str, float]:
        """Status, body, and seconds until it was all there, on a connection of its own."""
        started = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return response.status, body, time.perf_counter() - started

    def peak_bytes(self) -> int:
        """The most that was resident at any moment."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(kib) * 1024

    def await_ready(self) -> None:
        while self.get("/readyz")[0] != 200:
            time.sleep(0.05)

    def await_reads(self, num_reads: int) -> None:
        """Waits for so many reads that begin and end from now on."""
        for _ in range(num_reads):
            before = self.samples()["autofit_storage_read_timestamp_seconds"]
            while self.samples()["autofit_storage_read_timestamp_seconds"] == before:
                time.sleep(0.05)

    def samples(self) -> dict[str, float]:
        lines = [line for line in self.get("/metrics")[1].splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def scrapes(self, num_scrapes: int) -> list[float]:
        """Seconds of scrapes one after the other, over several reads of the storage."""
        durations = []
        for _ in range(num_scrapes):
            durations.append(self.get("/metrics")[2])
            time.sleep(0.02)
        return durations


@contextlib.contextmanager
def served(storage: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "autofit.cli", "serve", "--storage", storage, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--interval", str(_INTERVAL_SECONDS)], stderr=subprocess.PIPE, text=True
    )
    try:
        server = Server(process)
        server.await_ready()
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        server.lines_after_end += said.splitlines()


def tell_until(storage: str, begun: Event, stop: Event) -> None:
    """Tells a trial twenty times a second."""
    with quiet_optuna():
        opened = open_storage(storage, _LARGE)
        study_id = opened.backend.get_study_id_from_name(_LARGE)
        first = opened.backend.get_trial_id_from_study_id_trial_number(study_id, 0)
        template = copied(opened.backend.get_trial(first), batch_size=7)
        begun.set()
        while not stop.wait(0.05):
            opened.backend.create_new_trial(study_id, template)
        opened.close()


def table(rows: list[Row]) -> str:
    """The rows for people, in Markdown."""
    lines = [
        "| storage | first read | nothing new | scrape p50 / max | while told | empty | memory |"
        " one client | crowd p50 / p99 / max | failed | lines |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        seen = row.crowd
        ratio = row.scrape_p50 / row.empty_scrape_p50
        cells = [
            row.backend,
            f"{row.first_read_seconds:.1f} s",
            f"{1e3 * row.idle_read_seconds:.0f} ms",
            f"{1e3 * row.scrape_p50:.1f} / {1e3 * row.scrape_max:.1f} ms",
            f"{1e3 * row.busy_scrape_p50:.1f} / {1e3 * row.busy_scrape_max:.1f} ms",
            f"{1e3 * row.empty_scrape_p50:.1f} / {1e3 * row.empty_scrape_max:.1f} ms (×{ratio:.1f})",
            f"{row.resident_bytes / 1e6:.0f} MB",
            f"{1e3 * seen.alone_p50:.1f} ms",
            f"{1e3 * seen.p50:.1f} / {1e3 * seen.p99:.1f} (×{seen.ratio:.1f}) / {1e3 * seen.slowest:.0f} ms",
            f"{seen.num_failed} of {seen.num_scrapes + seen.num_failed}",
            f"{row.num_lines} in {row.observed_seconds:.0f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
