"""How fast profiles and their views are: `python tests/bench/profile_speed.py`.

Wants the project installed. One `autofit profile` of resnet50 at batch 128 as a whole process, beside
`import torch` alone in the same run; then every view of a saved profile of 100,000 events, each as a
whole process too. The limits hold on two cores; the ratio is what to compare.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from autofit.cli.commands.profile_views import VIEWS
from autofit.explain.profile import Profile, read_profile
from autofit_workers.replay.allocator import given_blocks
from autofit_workers.spec.trace import Call, Mark

NUM_RUNS = 3
PROFILE_LIMIT_SECONDS = 6.0
VIEW_LIMIT_SECONDS = 2.0
NUM_EVENTS = 100_000
PROFILE = ("profile", "--model", "resnet50", "--batch-size", "128", "--quiet")


def seconds_of(command: Sequence[str], num_runs: int) -> float:
    """The median wall time of a command over so many runs."""
    seconds = []
    for _ in range(num_runs):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def lengthened(profile: Profile, num_events: int) -> Profile:
    """The same steps again and again, each with allocations of its own, up to so many events.

    Allocations that outlive the trace are made once more by every repetition, and never freed.
    """
    trace = profile.trace
    repetitions = -(-num_events // len(trace.events))
    size = len(trace.allocations)
    events: list[int] = []
    calls: list[Call] = []
    marks: list[Mark] = []
    for number in range(repetitions):
        shift, start = number * size, len(events)
        events += [event + shift if event >= 0 else event - shift for event in trace.events]
        calls += [
            dataclasses.replace(
                call,
                position=call.position + start,
                inputs=tuple(each + shift for each in call.inputs),
                outputs=tuple(each + shift for each in call.outputs),
            )
            for call in trace.calls
        ]
        marks += [
            Mark(position=mark.position + start, name=_later(mark.name, 3 * number))
            for mark in trace.marks
            if number == 0 or mark.name.startswith("step")
        ]
    longer = dataclasses.replace(
        trace,
        allocations=trace.allocations * repetitions,
        events=tuple(events),
        calls=tuple(calls),
        marks=tuple(marks),
    )
    requested = profile.requested_bytes * repetitions
    return dataclasses.replace(
        profile,
        trace=longer,
        requested_bytes=requested,
        block_bytes=tuple(given_blocks(longer.events, requested)),
    )


def _later(mark: str, num_steps: int) -> str:
    if not mark.startswith("step "):
        return mark
    _, number, phase = mark.split()
    return f"step {int(number) + num_steps} {phase}"


def machine() -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load}"


def main() -> int:
    """Prints the table; 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=NUM_RUNS, help=f"of each command [{NUM_RUNS}]")
    parser.add_argument("--events", type=int, default=NUM_EVENTS, help=f"of the saved profile [{NUM_EVENTS}]")
    parser.add_argument("--view", action="append", choices=VIEWS, help="repeatable; default: all")
    options = parser.parse_args()
    autofit = [sys.executable, "-m", "autofit.cli"]
    print(f"{machine()}; Python {platform.python_version()}; medians of {options.runs}\n")
    torch_seconds = seconds_of([sys.executable, "-c", "import torch"], options.runs)
    print("| command | seconds | × `import torch` |\n|---|---|---|")
    print(f"| `import torch` | {torch_seconds:.2f} | 1.0 |", flush=True)
    exceeded = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json.gz"
        rows = [
            ("profile of resnet50 at 128", [*autofit, *PROFILE, "--save", str(path)], PROFILE_LIMIT_SECONDS)
        ]
        long_path = Path(folder) / "long.json.gz"
        shown = [*autofit, "profile", "--trace", str(long_path), "--view"]
        rows += [
            (f"{view} of {options.events:,} events", [*shown, view], VIEW_LIMIT_SECONDS)
            for view in options.view or VIEWS
        ]
        for name, command, limit_seconds in rows:
            if str(long_path) in command and not long_path.exists():
                long_path.write_bytes(lengthened(read_profile(path), options.events).to_bytes())
            seconds = seconds_of(command, options.runs)
            print(f"| {name} | {seconds:.2f} | {seconds / torch_seconds:.1f} |", flush=True)
            if seconds > limit_seconds:
                exceeded.append(f"{name} took {seconds:.1f} s, more than {limit_seconds:.0f}")
    print("\n".join(exceeded) or "within the limits")
    return bool(exceeded)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as state:
        os.environ["AUTOFIT_STATE_DIR"] = state
        sys.exit(main())
