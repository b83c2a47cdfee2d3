"""Times steps of `cpu_workloads` on this machine's CPU, each workload and precision in a process of its own.

`python tests/bench/time/cpu_runs.py NAME PRECISION SIZE …` prints one JSON document for each batch size; with
`--operators` also what each operator of a step took. The speeds of the CPU are measured before each; what is
predicted rests on their medians, since whoever else uses the machine changes them by a third within minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit_workers.spec.pythons import Self

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from autofit_workers.apply import setting  # noqa: E402
from autofit_workers.spec.knobs import Knobs  # noqa: E402
from autofit_workers.spec.protocol import Device, Probe, TrialSpec, WorkloadRef  # noqa: E402
from autofit_workers.tracing.recording.names import name_of  # noqa: E402
from autofit_workers.trials.measure import steps  # noqa: E402
from autofit_workers.trials.measure.cpu import ResidentSet  # noqa: E402
from autofit_workers.workload.workload import resolve  # noqa: E402
from tests.bench.time.cpu_costs import CpuSpeeds  # noqa: E402
from tests.bench.time.cpu_speeds import measure_cpu_speeds  # noqa: E402

FILE = Path(__file__).with_name("cpu_workloads.py")
_WARM_UP_STEPS, _LEAST_STEPS, _MOST_STEPS, _SECONDS = 3, 5, 40, 1.5
_OPERATOR_STEPS = 5
_DEADLINE_SECONDS = 900.0


def reference(name: str) -> WorkloadRef:
    return WorkloadRef(kind="file", target=f"{FILE}:{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was timed of a workload at a batch size.

    Attributes:
        seconds: of a step, the median.
        speeds: of the CPU, right before.
        operators: names and seconds in their order, each the median of several steps; empty unless asked for.
    """

    name: str
    precision: str
    batch_size: int
    seconds: float
    speeds: CpuSpeeds
    operators: tuple[tuple[str, float], ...] = ()

    @classmethod
    def from_json(cls, line: str) -> Self:
        values = json.loads(line)
        operators = tuple((name, seconds) for name, seconds in values.pop("operators"))
        return cls(**values | {"speeds": CpuSpeeds(**values["speeds"])}, operators=operators)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def runs(name: str, precision: str, sizes: Sequence[int], *, with_operators: bool = False) -> list[Run]:
    """Runs a workload's steps in a fresh process."""
    command = [sys.executable, __file__, name, precision, *map(str, sizes)]
    if with_operators:
        command.append("--operators")
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return [Run.from_json(line) for line in done.stdout.splitlines()]


def median_speeds(of: Sequence[Run]) -> CpuSpeeds:
    """The speeds of the CPU during all of these runs."""
    found = [run.speeds for run in of]
    flops = {name: statistics.median(each.flops[name] for each in found) for name in found[0].flops}
    return dataclasses.replace(
        found[0],
        flops=flops,
        vector_flops=flops["float32"],
        bandwidth=statistics.median(each.bandwidth for each in found),
        call_seconds=statistics.median(each.call_seconds for each in found),
        page_seconds=statistics.median(each.page_seconds for each in found),
    )


class _Timing(TorchDispatchMode):
    """Notes what each operator takes; on a CPU the caller waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[tuple[str, float]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        begin = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self.seconds.append((name_of(func), time.perf_counter() - begin))
        return result


def _timed(name: str, precision: str, batch_size: int, *, with_operators: bool) -> Run:
    spec = TrialSpec(
        workload=reference(name),
        batch_size=batch_size,
        probe=Probe.CPU,
        knobs=Knobs(precision=precision),
        num_threads=torch.get_num_threads(),
        deadline_seconds=_DEADLINE_SECONDS,
    )
    device = torch.device("cpu")
    progress = steps.Progress(device=Device(kind="cpu", name="cpu"), report=lambda *_: None)
    with steps.conditions(spec, device, {}) as rewriting:
        setting.set_threads(spec.num_threads)
        trial = steps.Trial(
            resolve(spec.workload),
            spec,
            device,
            ResidentSet(tries_again=False),
            progress,
            rewriting=rewriting,
        )
        for _ in range(_WARM_UP_STEPS):
            trial.step()
        speeds = measure_cpu_speeds()
        seconds = list(_until_enough(trial))
        operators = _of_operators(trial) if with_operators else ()
    return Run(
        name=name,
        precision=precision,
        batch_size=batch_size,
        seconds=statistics.median(seconds),
        speeds=speeds,
        operators=operators,
    )


def _until_enough(trial: steps.Trial) -> Iterator[float]:
    begin = time.perf_counter()
    for number in range(_MOST_STEPS):
        if number >= _LEAST_STEPS and time.perf_counter() - begin > _SECONDS:
            return
        start = time.perf_counter()
        trial.step()
        yield time.perf_counter() - start


def _of_operators(trial: steps.Trial) -> tuple[tuple[str, float], ...]:
    timed = []
    for _ in range(_OPERATOR_STEPS):
        with _Timing() as mode:
            trial.step()
        timed.append(mode.seconds)
    medians = [statistics.median(seconds for _, seconds in each) for each in zip(*timed, strict=True)]
    return tuple((name, seconds) for (name, _), seconds in zip(timed[0], medians, strict=True))


def main() -> None:
    """Prints the runs of one workload, one by one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("precision")
    parser.add_argument("sizes", nargs="+", type=int)
    parser.add_argument("--operators", action="store_true")
    arguments = parser.parse_args()
    for size in arguments.sizes:
        run = _timed(arguments.name, arguments.precision, size, with_operators=arguments.operators)
        print(run.to_json(), flush=True)


if __name__ == "__main__":
    main()
