"""Compares predictions of other releases of PyTorch with this one's, configuration by configuration.

    python -m tests.versions.table [--folder FOLDER] [--release 2.8] [--python 3.10] [NAME…]

Downloads about a gigabyte for each release. A cell of the table is `equal` where all allocations and frees
are those of the PyTorch of this environment, `as much` where these differ but the peaks do not, else the
difference of the reserved peak, or the first words of the error. Other Pythons, which are looked for on PATH,
are each run with one release unless others are asked for.
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

from tests.versions.installations import OWN_RELEASE, RELEASES, ROOT, WITH_THE_OWN, installed
from tests.versions.other_pythons import RELEASE_OF, Python, found

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


def pairs(releases: list[str] | None, pythons: list[str] | None) -> Iterator[tuple[str, Python | None]]:
    """Yields releases, each with the other Python that runs it, or None for the one that runs.

    Args:
        releases: releases that were asked for; None for all.
        pythons: other Pythons that were asked for, by version or path; None for none, or all if there is no
            `releases` either. One that this machine lacks is named in a line of the output.
    """
    if pythons is None:
        yield from ((release, None) for release in releases or RELEASES)
    for name in pythons or ([] if releases else RELEASE_OF):
        python = found(name)
        if python is None:
            print(f"Python {name} is not installed here")
            continue
        for release in releases or [RELEASE_OF.get(python.version, OWN_RELEASE)]:
            yield release, python


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=platformdirs.user_cache_path("autofit-versions"))
    parser.add_argument("--release", action="append", choices=list(WITH_THE_OWN))
    parser.add_argument("--python", action="append", help="another Python: its version or path")
    parser.add_argument("names", nargs="*", help="parts of the names of cases; all by default")
    options = parser.parse_args()
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as configurations:
        folder = Path(configurations)
        here = {case["name"]: case for case in traced_here(folder, options.names)}
        for release, python in pairs(options.release, options.python):
            label = release if python is None else f"{release} with Python {python.version}"
            installation = installed(WITH_THE_OWN[release], options.folder / label.replace(" ", "-"), python)
            process = installation.run("-m", "tests.versions.traced", str(folder), *options.names)
            for there in _read(process):
                words = cell(here[there["name"]], there)
                counted["equal" if words in ("equal", "as much", "refused here too") else "other"] += 1
                print(f"{label:5} {there['name']:42} {words}", flush=True)
    print(f"{counted['equal']} of {counted.total()} equal")


if __name__ == "__main__":
    main()
