"""Compares predictions of other releases of PyTorch with this one's, configuration by configuration.

    python -m tests.versions.table [--folder FOLDER] [--release 2.8] [--python 3.10] [--record] [NAME…]

Downloads about a gigabyte for each release. A line is printed for each cell of the table, then a line of
totals for each release. `--record` keeps the digests of the cases that are known to differ, with which
`test_recorded.py` compares what `--torch` predicts. Other Pythons, which are looked for on PATH, are each run
with one release unless others are asked for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from autofit_workers.spec.pythons import StrEnum
from tests.versions.cases import DIFFERING_NAME
from tests.versions.installations import (
    KEPT,
    OWN_RELEASE,
    RELEASES,
    ROOT,
    WITH_THE_OWN,
    Installation,
    installed,
)
from tests.versions.other_pythons import RELEASE_OF, Python, found

Traced = dict[str, Any]
_PEAKS = ("reserved_bytes", "allocated_bytes")
_WORDS = 100  # characters of an error in a cell
RECORDED = Path(__file__).with_name("recorded.json")


class Outcome(StrEnum):
    """Outcome of a case with another release, compared with this one."""

    EQUAL = "equal"  # all allocations and frees are equal
    FOLLOWED = "followed"  # they are those that this release predicts by `--torch`
    AS_MUCH = "as much"  # they differ, and both peaks are those that it predicts by `--torch`
    EXPLAINED = "explained"  # peaks differ, or the case is refused, for a reason in `REASONS`
    DIFFERS = "differs"
    REFUSED = "refused"


BAD = (Outcome.DIFFERS, Outcome.REFUSED)

# Why cases whose names begin so differ with a release, or are refused.
REASONS: dict[tuple[str, Collection[str]], str] = {
    ("tp", ("2.6",)): "transformers 5 shards by what torch.distributed.tensor has since 2.7",
    ("tp", ("2.8 with Python 3.10",)): "pip finds transformers 5.20 for it, which has no such plans",
    ("timm:", ("2.15",)): "no torchvision for this release yet, which timm imports",
}


def traced_here(folder: Path, names: Iterable[str], release: str | None = None) -> Iterator[Traced]:
    """Cases as the PyTorch of this environment traces them, one by one.

    Args:
        folder: folder for files of the cases.
        names: parts of the names of cases; none for all.
        release: release of PyTorch that is followed; None for the one that traces.
    """
    followed = () if release is None else ("--follow", release)
    command = [sys.executable, "-m", "tests.versions.traced", *followed, str(folder), *names]
    return _read(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))


def _read(process: subprocess.Popen[str]) -> Iterator[Traced]:
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode != 0:
        raise SystemExit(f"the process that traces ended with {process.returncode}")


def compared(here: Traced, followed: Traced | None, there: Traced) -> Outcome:
    """Compares a case of another release with this one's, as it is and as `--torch` predicts it.

    Args:
        here: case as this release traces it.
        followed: case as this release predicts it for the other one; None if it was not traced.
        there: case as the other release traces it.
    """
    if "error" in there:
        return Outcome.EQUAL if here.get("error") == there["error"] else Outcome.REFUSED
    if "error" in here:
        return Outcome.DIFFERS
    if followed is not None and followed.get("digest") != there["digest"]:
        is_as_much = all(followed.get(name) == there[name] for name in _PEAKS)
        return Outcome.AS_MUCH if is_as_much else Outcome.DIFFERS
    if here["digest"] == there["digest"]:
        return Outcome.EQUAL
    return Outcome.FOLLOWED if followed is not None else Outcome.DIFFERS


def reason_of(name: str, label: str) -> str | None:
    """Known reason why a case differs with a release, or with a release and Python; None if there is none."""
    return next(
        (why for (start, labels), why in REASONS.items() if name.startswith(start) and label in labels),
        None,
    )


def details(predicted: Traced, there: Traced) -> str:
    """Words on a case that differs: the error, or by how much the reserved and allocated peaks do."""
    if "error" in predicted or "error" in there:
        return str(there.get("error", f"here: {predicted.get('error')}"))[:_WORDS]
    return ", ".join(f"{name} {(there[name] - predicted[name]) / predicted[name]:+.2%}" for name in _PEAKS)


def compare(
    label: str, installation: Installation, folder: Path, names: Iterable[str], here: dict[str, Traced]
) -> Iterator[tuple[str, Outcome, str]]:
    """Name, outcome and words on a difference of each case with a release.

    Args:
        label: release of PyTorch, such as `2.8`; also with its Python, as in `2.8 with Python 3.10`.
        installation: installation that has it.
        folder: folder for files of the cases.
        names: parts of the names of cases; none for all.
        here: cases as the PyTorch of this environment traces them, by name.
    """
    process = installation.run("-m", "tests.versions.traced", str(folder), *names)
    there = {case["name"]: case for case in _read(process)}
    release = label.partition(" ")[0]
    followed = {case["name"]: case for case in traced_here(folder, names, release)}
    for name, case in there.items():
        outcome, said = compared(here[name], followed.get(name), case), ""
        if outcome in BAD:
            said = details(followed.get(name, here[name]), case)
            if (why := reason_of(name, label)) is not None:
                outcome, said = Outcome.EXPLAINED, f"{said}: {why}"
        yield name, outcome, said


def record(release: str, folder: Path, installation: Installation) -> None:
    """Keeps the digests with a release of cases that are known to differ in `recorded.json`."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else {}
    process = installation.run("-m", "tests.versions.traced", str(folder), DIFFERING_NAME)
    recorded[release] = {case["name"]: case["digest"] for case in _read(process)}
    RECORDED.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")


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
    parser.add_argument("--folder", type=Path, default=KEPT)
    parser.add_argument("--release", action="append", choices=list(WITH_THE_OWN))
    parser.add_argument("--python", action="append", help="another Python: its version or path")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("names", nargs="*", help="parts of the names of cases; all by default")
    options = parser.parse_args()
    totals: dict[str, Counter[Outcome]] = {}
    with tempfile.TemporaryDirectory() as configurations:
        folder = Path(configurations)
        here = {case["name"]: case for case in traced_here(folder, options.names)}
        for release, python in pairs(options.release, options.python):
            label = release if python is None else f"{release} with Python {python.version}"
            installation = installed(WITH_THE_OWN[release], options.folder / label.replace(" ", "-"), python)
            if options.record:
                record(release, folder, installation)
            counts = totals[label] = Counter()
            for name, outcome, said in compare(label, installation, folder, options.names, here):
                counts[outcome] += 1
                print(f"{label:5} {name:42} {outcome:9} {said}".rstrip(), flush=True)
    width = max(map(len, totals))
    print()
    print(" | ".join([f"{'release':{width}}", *Outcome]))
    for label, counts in totals.items():
        print(" | ".join([f"{label:{width}}", *(f"{counts[each]:{len(each)}}" for each in Outcome)]))
    of_all = sum(totals.values(), Counter())
    num_good = of_all.total() - sum(of_all[outcome] for outcome in BAD)
    print(f"{num_good} of {of_all.total()} equal, followed, as much or explained")


if __name__ == "__main__":
    main()
