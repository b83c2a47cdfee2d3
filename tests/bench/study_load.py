"""One study of thousands of trials: what the storage costs a trial, and whether that stays the same.

The space is every combination of knobs, cut to as many settings as are asked for; predictions are a
quarter off, so that every setting takes its trials through the search as a measured one does. Asking
and telling is `TuningStudy`'s, the trials themselves take no time. Each storage runs in a process of
its own, whose resident memory is that of a coordinator.

    python tests/bench/study_load.py --trials 10000 --storage journal,sqlite,postgresql

Exits with 1 where the last thousand took more than `--most` times as long as the first.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from autofit.search.curves import CachedCurve
from autofit.search.space import SearchSpace
from autofit.study.study import TuningStudy
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.knobs.conv_algo import CONV_ALGOS
from autofit_workers.spec.knobs.memory_format import MEMORY_FORMATS
from autofit_workers.spec.knobs.optimizer import OPTIMIZERS
from autofit_workers.spec.knobs.optimizer_impl import OPTIMIZER_IMPLS
from autofit_workers.spec.knobs.precision import PRECISIONS
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict
from tests.postgres import running_postgres

MIB = 1024**2
BUDGET_BYTES = 16 * 1024 * MIB
STORAGES = ("journal", "sqlite", "postgresql")
DEVICE = Device(kind="cuda", name="NVIDIA A100-SXM4-40GB", driver="570.124")
# As much as a measured trial says of what it ran under.
ENVIRONMENT = {"torch": "2.13.0+cu130", "cudnn": "9.20.0", "python": "3.12.4", "PYTORCH_CUDA_ALLOC_CONF": ""}
LOG = "a line that the workload prints\n" * 4


class Line:
    """Predicted memory: a line in the batch."""

    def __init__(self, bytes_per_sample: int) -> None:
        self.bytes_per_sample = bytes_per_sample

    def peak_reserved_bytes(self, batch_size: int, *, stop_above_bytes: int | None = None) -> int:
        return 600 * MIB + self.bytes_per_sample * batch_size

    def lower_bound_bytes(self, batch_size: int) -> int:
        return self.peak_reserved_bytes(batch_size)


@dataclass(frozen=True)
class Block:
    """What a block of trials cost.

    Attributes:
        ask_seconds, tell_seconds: medians of one trial.
        cpu_seconds: of this process, a trial.
        resident_bytes: of the process, when the block was done.
    """

    first: int
    wall_seconds: float
    ask_seconds: float
    tell_seconds: float
    cpu_seconds: float
    resident_bytes: int


def whole_space() -> SearchSpace:
    """2,688 settings; each takes four trials or so."""
    return SearchSpace(
        choices={
            "conv_algo": CONV_ALGOS,
            "precision": PRECISIONS,
            "memory_format": MEMORY_FORMATS,
            "optimizer": (None, *OPTIMIZERS),
            "optimizer_impl": OPTIMIZER_IMPLS,
            "set_to_none": (True, False),
        },
        max_batch=4096,
    )


@functools.cache
def needed_per_sample(knobs: Knobs) -> int:
    """Some different number of bytes for every setting, from 8 to 40 MiB."""
    return 8 * MIB + zlib.crc32(repr(knobs).encode()) % (32 * MIB)


def measured(knobs: Knobs, batch_size: int) -> TrialOutcome:
    peak_bytes = int(620 * MIB + 1.03 * needed_per_sample(knobs) * batch_size)
    fits = peak_bytes <= BUDGET_BYTES
    peaks = Peaks(peak_bytes // 2, peak_bytes, peak_bytes + 450 * MIB)
    return TrialOutcome(
        verdict=Verdict.FITS if fits else Verdict.OOM,
        evidence=Evidence.MEASURED,
        device=DEVICE,
        batch_size=batch_size,
        knobs=knobs,
        first_step=peaks,
        steady=peaks,
        step_seconds=0.1 + batch_size / 1000,
        wall_seconds=12.5,
        environment=ENVIRONMENT,
        log_tail=LOG,
    )


def load(storage: str, num_trials: int, block: int, results: Any) -> None:
    """Runs so many trials of one study and sends what each block of them cost."""
    curves: dict[Knobs, CachedCurve] = {}

    def curve(knobs: Knobs) -> CachedCurve:
        return curves.setdefault(knobs, CachedCurve.of(Line(int(needed_per_sample(knobs) * 1.25))))

    options: dict[str, Any] = {"budget_bytes": BUDGET_BYTES, "settings": {}, "name": "load", "seed": 0}
    with TuningStudy.open(whole_space(), storage=storage, curves=curve, **options) as study:
        for first in range(0, num_trials, block):
            asked, told = [], []
            began, cpu_began = time.perf_counter(), time.process_time()
            for _ in range(min(block, num_trials - first)):
                start = time.perf_counter()
                ask = study.ask()
                middle = time.perf_counter()
                if ask is None:
                    sys.exit(
                        f"the space was searched to its end after {study.num_trials} trials: ask for fewer"
                    )
                study.tell(ask.trial_number, measured(ask.knobs, ask.batch_size))
                study.take_changed()
                asked.append(middle - start)
                told.append(time.perf_counter() - middle)
            results.send(
                Block(
                    first=first,
                    wall_seconds=time.perf_counter() - began,
                    ask_seconds=statistics.median(asked),
                    tell_seconds=statistics.median(told),
                    cpu_seconds=(time.process_time() - cpu_began) / len(told),
                    resident_bytes=psutil.Process().memory_info().rss,
                )
            )
        if study.num_trials != num_trials or len(study.outcomes()) != num_trials:
            sys.exit(f"{num_trials} trials were told, the study has {len(study.outcomes())}")
    results.send(None)


@contextlib.contextmanager
def place(kind: str) -> Iterator[str]:
    """An empty storage of a kind."""
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        if kind == "postgresql":
            with running_postgres() as server:
                yield server.url
        elif kind == "sqlite":
            yield f"sqlite:///{Path(folder) / 'studies.db'}"
        else:
            yield str(Path(folder) / "studies.journal")


def run(kind: str, num_trials: int, block: int) -> list[Block]:
    context = multiprocessing.get_context("spawn")
    with place(kind) as storage:
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=load, args=(storage, num_trials, block, sending))
        process.start()
        sending.close()
        blocks: list[Block] = []
        with contextlib.suppress(EOFError):
            while isinstance(received := receiving.recv(), Block):
                blocks.append(received)
                print_block(kind, received)
        process.join()
        if process.exitcode != 0 or len(blocks) * block < num_trials:
            sys.exit(f"{kind}: the process ended with {process.exitcode}")
    return blocks


def print_block(kind: str, block: Block) -> None:
    print(
        f"{kind:<11} {block.first:>6}… {1000 * block.ask_seconds:8.2f} {1000 * block.tell_seconds:8.2f} "
        f"{1000 * block.cpu_seconds:8.2f} "
        f"{block.wall_seconds:9.1f} {block.resident_bytes / MIB:9.0f}   load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def per_trial(block: Block) -> float:
    return block.ask_seconds + block.tell_seconds


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--block", type=int, default=1_000, help="trials a row")
    parser.add_argument("--storage", default=",".join(STORAGES))
    parser.add_argument("--most", type=float, default=1.5, help="the last block over the first, a trial")
    given = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{'storage':<11}  trials   ask ms  tell ms   CPU ms   block s   RSS MiB")
    rows, failed = [], False
    for kind in given.storage.split(","):
        blocks = run(kind, given.trials, given.block)
        first, last = blocks[0], blocks[-1]
        ratio = per_trial(last) / per_trial(first)
        grown = (last.resident_bytes - first.resident_bytes) / max(1, last.first - first.first)
        rows.append(
            f"| {kind} | {1000 * per_trial(first):.1f} | {1000 * per_trial(last):.1f} | {ratio:.2f} "
            f"| {1000 * first.cpu_seconds:.1f} | {1000 * last.cpu_seconds:.1f} "
            f"| {first.resident_bytes / MIB:.0f} | {last.resident_bytes / MIB:.0f} | {grown / 1024:.1f} |"
        )
        failed = failed or ratio > given.most
    titles = (
        "storage | ms first | ms last | ratio | CPU first | CPU last | MiB first | MiB last | KiB a trial"
    )
    print(f"\n| {titles} |")
    print("|---|---|---|---|---|---|---|---|---|", *rows, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
