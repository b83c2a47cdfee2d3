"""What ranks that meet over gloo allocate, as PyTorch's profiler sees it, is what is predicted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit_workers.spec.protocol import HOST_ARCHITECTURE
from autofit_workers.spec.setup import Parallel
from tests.workers.tracing.recording.test_sharding import FILE, large, sizes_in_steps, trace_of
from tests.workers.tracing.test_against_cpu import canonical

pytestmark = pytest.mark.process

RUNS = (
    "gpt=ddp:2",
    "llama=ddp:2",
    "resnet=ddp:2",
    "gpt=fsdp:2",
    "llama=fsdp:2",
    "resnet=fsdp:2",
    "gpt=fsdp1:2",
    "llama=fsdp1:2+grad-op",
    "perceptrons=tp:2",
    "llama=tp:2",
    "mixtral=ep:2",
    "gpt=pp:2",
    "llama=pp:2+gpipe+3",
    "five_perceptrons=pp:2+interleaved1f1b",
    "five_perceptrons=pp:2+zbvzerobubble",
    "gpt=zero1:2",
    "gpt=zero2:2",
    "gpt=zero3:2",
    "llama=fsdp:4",
    "perceptrons=tp:4",
    "llama=hsdp:2x2",
    "llama=pp:2,fsdp:2",
    "perceptrons=pp:2,tp:2",
    "llama=pp:2,tp:2",
)
# A thread of gloo's may free what was exchanged when nobody records any more, where C++ waits for it, as the
# reducer of DistributedDataParallel does; and copies of groups that exchange at once come and go together.
MOST_ATTEMPTS = 10
NUM_THREADS = 1  # there are several processes


class Ranks:
    """Processes that are the ranks of one run after the other.

    Args:
        folder: where they meet, and say what went wrong.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[str]] = []
        self._num_runs = 0

    def allocated(self, run: str) -> list[list[int]]:
        """What each rank of `NAME=PARALLEL` allocates in two steps, and frees."""
        num_ranks = Parallel.parse(run.split("=")[1]).num_ranks
        while len(self._processes) < num_ranks:
            self._processes.append(self._started(len(self._processes)))
        self._num_runs += 1
        asked = self._processes[:num_ranks]
        for rank, process in enumerate(asked):
            assert process.stdin is not None
            process.stdin.write(f"{rank} {self._folder / str(self._num_runs)} {run}\n")
            process.stdin.flush()
        return [self._answer(rank, process) for rank, process in enumerate(asked)]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def _started(self, rank: int) -> subprocess.Popen[str]:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(NUM_THREADS)}
        with self._errors(rank).open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.workers.tracing.sharded_workloads"],
                text=True, cwd=FILE.parents[3], env=environment,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip

    def _answer(self, rank: int, process: subprocess.Popen[str]) -> list[int]:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, self._errors(rank).read_text()
        sizes: list[int] = json.loads(line)
        return sizes

    def _errors(self, rank: int) -> Path:
        return self._folder / f"errors-{rank}"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    found = Ranks(tmp_path_factory.mktemp("ranks"))
    yield found
    found.close()


@pytest.mark.parametrize("run", RUNS)
def test_ranks_allocate_and_free_what_is_predicted_size_by_size(run, ranks):
    name, parallel = run.split("=")
    if "zero" in parallel:
        pytest.importorskip("deepspeed")
    num_ranks = Parallel.parse(parallel).num_ranks
    # Stages differ; of other ranks the first and the last do at most.
    compared = range(num_ranks) if "pp" in parallel else (0, num_ranks - 1)
    # Convolutions take memory on the CPU that none on a GPU do.
    architecture = HOST_ARCHITECTURE if name == "resnet" else "sm_80"
    options = {"architecture": architecture, "num_threads": NUM_THREADS}
    differing = {
        rank: without_passing(large(sizes_in_steps(trace_of(name, parallel, rank=rank, **options))))
        for rank in compared
    }
    assert all(differing.values())
    for _attempt in range(MOST_ATTEMPTS):
        real = ranks.allocated(run)
        differing = {
            rank: own for rank, own in differing.items() if own != without_passing(large(real[rank]))
        }
        if not differing:
            return
    pytest.fail(f"ranks {list(differing)} never allocated the same in {MOST_ATTEMPTS} runs")


def without_passing(sizes: list[int]) -> list[int]:
    """The same without what is freed at once, as gloo's own copies of what it exchanges are."""
    kept: list[int] = []
    for size in sizes:
        if kept and size < 0 and kept[-1] == -size:
            kept.pop()
        else:
            kept.append(size)
    return canonical(kept)
