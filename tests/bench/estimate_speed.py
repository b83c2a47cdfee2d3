"""How fast predictions are: `python tests/bench/estimate_speed.py`.

Wants the project installed. For every built-in workload, one `autofit estimate` as a whole process,
beside `import torch` alone in the same run; then the milliseconds of a further batch size on a
curve that has its traces. The limits hold on two cores; the ratio is what to compare.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import autofit
from workers.workload.models import BUILTINS

NUM_RUNS = 3
ESTIMATE_LIMIT_SECONDS = 6.0
CURVE_LIMIT_SECONDS = 0.020
BATCH_SIZES = range(10, 130, 7)


def seconds_of(command: list[str]) -> float:
    """The median wall time of a command over `NUM_RUNS` runs."""
    seconds = []
    for _ in range(NUM_RUNS):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def curve_seconds() -> list[float]:
    """One further batch size of resnet50, as often as there are `BATCH_SIZES`."""
    curve = autofit.peak_curve("resnet50")
    seconds = []
    for batch_size in BATCH_SIZES:
        started = time.perf_counter()
        curve.peak_reserved_bytes(batch_size, stop_above_bytes=1 << 60)
        seconds.append(time.perf_counter() - started)
    return seconds


def machine() -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {load}"


def main() -> int:
    """Prints the tables; 1 if a limit is exceeded."""
    print(f"{machine()}; Python {platform.python_version()}; medians of {NUM_RUNS}\n")
    torch_seconds = seconds_of([sys.executable, "-c", "import torch"])
    print("| `autofit estimate --batch-size 8` | seconds | × `import torch` |\n|---|---|---|")
    print(f"| (`import torch`) | {torch_seconds:.1f} | 1.0 |")
    exceeded = []
    command = [str(Path(sys.executable).with_name("autofit")), "estimate", "--batch-size", "8", "--model"]
    for name in BUILTINS:
        seconds = seconds_of([*command, name])
        print(f"| `{name}` | {seconds:.1f} | {seconds / torch_seconds:.1f} |", flush=True)
        if seconds > ESTIMATE_LIMIT_SECONDS:
            exceeded.append(f"{name} took {seconds:.1f} s, more than {ESTIMATE_LIMIT_SECONDS:.0f}")
    further = curve_seconds()
    median_ms, worst_ms = 1000 * statistics.median(further), 1000 * max(further)
    print(
        f"\nOne further batch size of resnet50: {median_ms:.0f} ms "
        f"(median of {len(further)}; worst {worst_ms:.0f})."
    )
    if statistics.median(further) > CURVE_LIMIT_SECONDS:
        exceeded.append(
            f"a further batch size took {median_ms:.0f} ms, more than {1000 * CURVE_LIMIT_SECONDS:.0f}"
        )
    print("\n".join(exceeded) or "within the limits")
    return bool(exceeded)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as state:
        os.environ["AUTOFIT_STATE_DIR"] = state
        sys.exit(main())
