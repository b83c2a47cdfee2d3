"""Check of the installation: that `autofit` is this distribution, and that its files are unchanged.

Another project of the registry is called autofit, and its distribution writes a folder `autofit/` too. Where
both are installed, the later one has overwritten files of the earlier one, and an import of `autofit` runs a
mixture. The console script enters here, in the package that only this distribution has, so that it can
report the mixture instead of failing somewhere inside.
"""

from __future__ import annotations

import csv
import hashlib
import importlib
import importlib.util
import json
import re
import sys
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

from autofit_workers.process.operating_system import unsupported

DISTRIBUTION = "autofit-gpu"

_PACKAGE = "autofit"
_AGAIN = f"pip install --force-reinstall --no-deps {DISTRIBUTION}"
_RECORD = "autofit_gpu-*.dist-info/RECORD"
_OTHERS = "autofit-*-info"  # metadata of the distribution `autofit`; also of this one up to 0.2
_CHECKOUTS = "workers"  # the folder that holds this package in a checkout
_SITES = ("site-packages", "dist-packages")
# `autofit.errors.ExitCode`, which may be somebody else's file here.
_USAGE, _INFRASTRUCTURE = 2, 5


def enter() -> int:
    """Runs the command `autofit`, if it runs on this system and the package of that name is this project's.

    Returns:
        The exit code.
    """
    if (reason := unsupported()) is not None:
        return _refused(reason, kind="usage", exit_code=_USAGE)
    if (fault := installation_fault()) is not None:
        return _refused(fault, kind="installation", exit_code=_INFRASTRUCTURE)
    _tell_once(namesake())
    code: int = importlib.import_module("autofit.cli").main()
    return code


def _refused(message: str, *, kind: str, exit_code: int) -> int:
    """Prints why no command runs, as the JSON of an error if that is asked for, and returns the exit code."""
    if "--json" in sys.argv:
        document = {"schema": "autofit.error/1", "kind": kind, "message": message, "exit_code": exit_code}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stderr.write(f"error: {message}\n")
    return exit_code


def installation_fault(package: Path | None = None) -> str | None:
    """Fault of the installation, by comparing the installed files with the distribution's record.

    Args:
        package: the folder of the installed `autofit_workers`; this one unless given.

    Returns:
        What is wrong, in one sentence with the next step; None where nothing is.
    """
    package = package or Path(__file__).parent
    record = next(iter(package.parent.glob(_RECORD)), None)  # an editable installation has none there
    changed = [] if record is None else list(_changed(record))
    if changed:
        more = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
        which = "are not as {} installed them" if more else "is not as {} installed it"
        return f"{changed[0]}{more} in {package.parent} {which.format(DISTRIBUTION)}{_cure()}"
    ours = (package.parents[1] if package.parent.name == _CHECKOUTS else package.parent) / _PACKAGE
    found = importlib.util.find_spec(_PACKAGE)
    where = None if found is None or found.origin is None else Path(found.origin).parent
    if where is None or where.resolve() != ours.resolve():
        return f"`import autofit` finds {where or 'nothing'} instead of {ours}{_cure()}"
    return None


def namesake() -> str | None:
    """Note on another installed distribution that writes to the folder `autofit/`.

    Returns:
        A sentence with the next step; None where there is no such distribution.
    """
    other = _other()
    if other is None:
        return None
    return (
        f"{other} is installed beside {DISTRIBUTION} and writes to the same folder {_PACKAGE}/: "
        f"pip uninstall {_PACKAGE}, then {_AGAIN}"
    )


def _tell_once(note: str | None) -> None:
    """Writes a note to standard error, and silences the equal warning of the import that follows."""
    if note is not None:
        sys.stderr.write(f"note: {note}\n")
        warnings.filterwarnings("ignore", message=re.escape(note))


def _cure() -> str:
    """Second half of an error sentence on the installation: a distribution in conflict, and what to do."""
    other = _other()
    if other is None:
        return f": {_AGAIN}"
    return f"; {other} has files of the same names: pip uninstall {_PACKAGE}, then {_AGAIN}"


def _other() -> str | None:
    """Name and version of an installed distribution called `autofit`; None if there is none."""
    for folder in map(Path, sys.path):
        if folder.name in _SITES:
            for metadata in folder.glob(_OTHERS):
                return f"the distribution {metadata.stem.replace('-', ' ', 1)}"
    return None


def _changed(record: Path) -> Iterator[str]:
    """Yields the names of recorded files of autofit that are missing or different.

    Files are compared by size, without reading 800 files at each start; but `autofit/__init__.py`, which any
    package has and which is short in many of them, by its digest too.
    """
    site = record.parents[1]
    with record.open(encoding="utf-8", newline="") as rows:
        for name, digest, size in csv.reader(rows):
            if not name.startswith((f"{_PACKAGE}/", f"{Path(__file__).parent.name}/")) or not size:
                continue  # the script, metadata, compiled files
            path = site / name
            try:
                is_same = path.stat().st_size == int(size)
                if is_same and name == f"{_PACKAGE}/__init__.py":
                    is_same = digest == f"sha256={_digest(path)}"
            except OSError:
                is_same = False
            if not is_same:
                yield name


def _digest(path: Path) -> str:
    return urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
