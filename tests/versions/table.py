"""Compares predictions of other releases of PyTorch with this one's, configuration by configuration.

    python -m tests.versions.table [--folder FOLDER] [--release 2.8] [NAME…]

Downloads about a gigabyte for each release. A cell of the table is `equal` where all allocations and frees
are those of the PyTorch of this environment, `as much` where these differ but the peaks do not, else the
difference of the reserved peak, or the first words of the error.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs

from tests.versions.installations import RELEASES, ROOT, installed

Traced = dict[str, Any]
_WORDS = 60  # characters of an error in a cell


def traced_here(folder: Path, names: list[str]) -> Iterator[Traced]:
    """Cases as the PyTorch of this environment traces them, one by one."""
    command = [sys.executable, "-m", "tests.versions.traced", str(folder), *names]
    return _read(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))


def _read(process: subprocess.Popen[str]) -> Iterator[Traced]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
    if process.wait() != 0:
        raise SystemExit(f"the process that traces ended with {process.returncode}")


def cell(here: Traced, there: Traced) -> str:
    """Words that compare a case of another release with this one's."""
    if "error" in here or "error" in there:
        both = "error" in here and "error" in there
        return "refused here too" if both else str(there.get("error", "only refused here"))[:_WORDS]
    if here["digest"] == there["digest"]:
        return "equal"
    differences = [there[name] - here[name] for name in ("allocated_bytes", "reserved_bytes")]
    if not any(differences):
        return "as much"
    return f"{differences[1] / here['reserved_bytes']:+.2%}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=platformdirs.user_cache_path("autofit-versions"))
    parser.add_argument("--release", action="append", choices=list(RELEASES))
    parser.add_argument("names", nargs="*", help="parts of the names of cases; all by default")
    options = parser.parse_args()
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as configurations:
        folder = Path(configurations)
        here = {case["name"]: case for case in traced_here(folder, options.names)}
        for release in options.release or RELEASES:
            python = installed(RELEASES[release], options.folder / release)
            process = python.run("-m", "tests.versions.traced", str(folder), *options.names)
            for there in _read(process):
                found = cell(here[there["name"]], there)
                counted["equal" if found in ("equal", "as much", "refused here too") else "other"] += 1
                print(f"{release:5} {there['name']:42} {found}", flush=True)
    print(f"{counted['equal']} of {counted.total()} equal")


if __name__ == "__main__":
    main()
