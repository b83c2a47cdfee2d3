"""autofit's finders of batch sizes beside those of trainers, on the CPU: `python tests/bench/peers.py`.

Lightning's `scale_batch_size` (power, binsearch), transformers' `auto_find_batch_size` and Accelerate's
`find_executable_batch_size`, each beside the one in `autofit.integrations`, look for the largest batch of the
same trainings under the same limit, in one run. Each is a fresh process that knows nothing of earlier runs.
Every answer is then run for three steps by its trainer in another fresh process under the limit, and no time
of that counts.

To try the script itself: `--training rows --trainer accelerate --limit 900M`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `tests` is no package that could be installed

from autofit.units import parse_bytes
from tests.bench.cpu_trials import ROOT, machine

TRAININGS = ("rows", "texts", "images")
FINDERS = {  # of each trainer: its own, and autofit's last
    "lightning": ("power", "binsearch", "autofit"),
    "transformers": ("own", "autofit"),
    "accelerate": ("own", "autofit"),
}
_PROGRAM = Path(__file__).parent / "trainers" / "finders.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one finder came to its answer.

    Attributes:
        batch_size: the answer; None if it ended with an error.
        fits: whether three steps with the answer ran in a fresh process under the limit.
        num_tries: sizes that really ran.
        sizes: those sizes in their order, where the finder runs them itself.
        wall_seconds: from the start of the process to its end.
        processor_seconds: of that process and all that it started.
    """

    trainer: str
    finder: str
    training: str
    batch_size: int | None
    fits: bool
    num_tries: int
    sizes: tuple[int, ...]
    wall_seconds: float
    processor_seconds: float
    error: str | None

    @property
    def name(self) -> str:
        return f"{self.trainer}, {self.finder}"


def started(finder: str, training: str, limit_bytes: int, *more: str) -> tuple[dict[str, Any], float, float]:
    """What a finder prints, in a process that knows nothing; its seconds and those of processors."""
    command = [sys.executable, str(_PROGRAM), finder, training, "--limit-bytes", str(limit_bytes), *more]
    path = os.pathsep.join([str(ROOT), str(ROOT / "workers")])
    with tempfile.TemporaryDirectory() as state:
        began, before = time.monotonic(), _processor_seconds()
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "AUTOFIT_STATE_DIR": state,
            },
            cwd=state,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds, processor_seconds = time.monotonic() - began, _processor_seconds() - before
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"batch_size": None, "sizes": [], "num_tries": None, "error": last}, seconds, processor_seconds
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer, seconds, processor_seconds


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(trainer: str, finder: str, training: str, limit_bytes: int) -> Run:
    """Runs a finder, and verifies its answer."""
    answer, seconds, processor_seconds = started(f"{trainer}-{finder}", training, limit_bytes)
    size, fits = answer["batch_size"], False
    if size is not None:
        verified, *_ = started(f"{trainer}-verify", training, limit_bytes, "--size", str(size))
        fits = verified["error"] is None
    tries = len(answer["sizes"]) if answer["num_tries"] is None else answer["num_tries"]
    return Run(
        trainer=trainer,
        finder=finder,
        training=training,
        batch_size=size,
        fits=fits,
        num_tries=tries,
        sizes=tuple(answer["sizes"]),
        wall_seconds=seconds,
        processor_seconds=processor_seconds,
        error=answer["error"],
    )


def print_run(each: Run) -> None:
    """Prints a row of Markdown, and how a finder without an answer ended."""
    answer = "none" if each.batch_size is None else str(each.batch_size)
    fits = "–" if each.batch_size is None else "yes" if each.fits else "**no**"
    sizes = ", ".join(map(str, each.sizes)) or "in other processes"
    print(
        f"| {each.training} | {each.name} | {answer} | {fits} | {each.num_tries} | {each.wall_seconds:.0f} "
        f"| {each.processor_seconds:.0f} | {sizes}{'' if each.error is None else f'; {each.error}'} |",
        flush=True,
    )


def misses(runs: list[Run]) -> list[str]:
    """Where autofit is not at least as good; a peer without an answer that fits is no measure."""
    *peers, ours = runs
    found = [] if ours.fits else [f"{ours.training}: no answer of {ours.name} that fits"]
    for peer in peers:
        if not (peer.fits and peer.batch_size and ours.fits and ours.batch_size):
            continue
        compared = {
            "smaller": (peer.batch_size, ours.batch_size),
            "more tries": (ours.num_tries, peer.num_tries),
            "slower": (round(ours.wall_seconds), round(peer.wall_seconds)),
        }
        found += [
            f"{ours.training}: {what} than {peer.name} ({ours_or_peers[0]} > {ours_or_peers[1]})"
            for what, ours_or_peers in compared.items()
            if ours_or_peers[0] > ours_or_peers[1]
        ]
    return found


def main() -> int:
    """Prints the table; 1 if autofit is not at least as good anywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--training", action="append", choices=TRAININGS, help="repeatable; default: each")
    parser.add_argument("--trainer", action="append", choices=FINDERS, help="repeatable; default: each")
    parser.add_argument("--limit", default="900M", help="on the memory of the process [900M]")
    options = parser.parse_args()
    limit_bytes = parse_bytes(options.limit)
    print(f"{machine()}; limit {options.limit}\n", flush=True)
    print("| training | finder | answer | fits | tries | seconds | processor seconds | sizes run |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    found = []
    for trainer in options.trainer or FINDERS:
        for training in options.training or TRAININGS:
            runs = []
            for finder in FINDERS[trainer]:
                runs.append(run(trainer, finder, training, limit_bytes))
                print_run(runs[-1])
            found += misses(runs)
    print("\n" + ("\n".join(found) or "the criterion holds"), f"\n\n{machine()}", sep="")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
