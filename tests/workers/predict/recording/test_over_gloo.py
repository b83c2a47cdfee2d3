"""What ranks that meet over gloo allocate, as PyTorch's profiler sees it, is what is predicted for the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.predict.recording.test_sharding import FILE, large, sizes_in_steps, trace_of
from tests.workers.predict.test_against_cpu import canonical
from workers.protocol import HOST_ARCHITECTURE
from workers.setup import Parallel

pytestmark = pytest.mark.process

# A thread of gloo's may free what was exchanged when nobody records any more: such a run is repeated.
MOST_ATTEMPTS = 10


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
        with self._errors(rank).open("w") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.workers.predict.sharded_workloads"],
                text=True, cwd=FILE.parents[3], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
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
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GLOO_SOCKET_IFNAME", "lo")
        found = Ranks(tmp_path_factory.mktemp("ranks"))
        yield found
        found.close()


def without_passing(sizes: list[int]) -> list[int]:
    """The same without what is freed at once, as gloo's own copies of what it exchanges are."""
    kept: list[int] = []
    for size in sizes:
        if kept and size < 0 and kept[-1] == -size:
            kept.pop()
        else:
            kept.append(size)
    return canonical(kept)
