"""Growth since a lock as SARIF 2.1.0, by which code hosts show it on the lines of a change.

A result is a line that holds more at the peak of a configuration whose memory grew. Growth that no line of
the project causes is a result on the lock itself.
"""

from __future__ import annotations

import collections
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autofit.answers.locks.changes import difference, signed
from autofit.locks.checking import LockCheck
from autofit.locks.growth import Change, Comparison, LineChange
from autofit.locks.lock_file import ANY_CARD
from autofit_workers.installation import DISTRIBUTION

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_VERSION = "2.1.0"
_RULE = "memory-grew"
_BASE = "%SRCROOT%"
_LEAST_SHARE = 100  # lines with less than this part of a configuration's growth are left out

_Grown = tuple[Comparison, LineChange]


def sarif_text(check: LockCheck, folder: Path) -> str:
    """Text of a SARIF log with the lines that grew.

    Args:
        check: the check against a lock.
        folder: folder of the project, in which the files of the results lie.
    """
    return json.dumps(_log(check, folder), indent=2) + "\n"


def _log(check: LockCheck, folder: Path) -> dict[str, Any]:
    grown = [each for each in check.configurations if each.change is Change.GREW]
    by_place = collections.defaultdict[tuple[str, int], list[_Grown]](list)
    elsewhere = []
    for each in grown:
        lines = _lines_of(each, folder)
        for line in lines:
            by_place[str(line.file), line.line or 1].append((each, line))
        if not lines:
            elsewhere.append(each)
    results = [_result_on(file, line, found) for (file, line), found in sorted(by_place.items())]
    results += [_result_on_lock(each, check.file) for each in elsewhere]
    driver = {
        "name": "autofit",
        "version": importlib.metadata.version(DISTRIBUTION),
        "rules": [
            {
                "id": _RULE,
                "name": "MemoryGrew",
                "shortDescription": {"text": "The predicted peak memory grew since it was locked."},
                "help": {"text": "If the growth is meant to be, lock it with `autofit lock`."},
                "defaultConfiguration": {"level": "error"},
            }
        ],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SCHEMA, "version": _VERSION, "runs": [run]}


def _lines_of(each: Comparison, folder: Path) -> Sequence[LineChange]:
    """Lines of files of the project that grew by a part of a configuration's growth that matters."""
    lines = [line for line in each.grown_lines if line.file is not None and (folder / line.file).is_file()]
    total = sum(line.difference_bytes for line in lines)
    return [line for line in lines if line.difference_bytes * _LEAST_SHARE >= total]


def _result_on(file: str, line: int, found: Sequence[_Grown]) -> dict[str, Any]:
    """Result on a line, with a sentence for each configuration and module that it made grow."""
    said = " ".join(_sentence(each, change) for each, change in found)
    return _result(said, file, line, (f"{each.name}|{change.module}|{change.code}" for each, change in found))


def _sentence(each: Comparison, line: LineChange) -> str:
    module = f" in {line.module}" if line.module else ""
    by = signed(line.difference_bytes)
    return f"{_title(each)}: this line{module} holds {by} at the peak, which changed by {_change(each)}."


def _result_on_lock(each: Comparison, file: str) -> dict[str, Any]:
    said = f"{_title(each)}: the peak changed by {_change(each)}, by no line of this project."
    return _result(said, file, 1, (each.name, each.gpu))


def _title(each: Comparison) -> str:
    return each.name if each.gpu == ANY_CARD else f"{each.name} on {each.gpu}"


def _change(each: Comparison) -> str:
    """Difference of the likely reserved peak, or where that is none, of the allocated one."""
    assert each.before is not None
    if each.difference_bytes > 0:
        return difference(each.before.likely_bytes, each.after.likely_bytes)
    return difference(each.before.allocated_bytes, each.after.allocated_bytes)


def _result(said: str, file: str, line: int, identity: Iterable[str]) -> dict[str, Any]:
    """Result with a fingerprint that stays the same where its line moves."""
    fingerprint = hashlib.sha256("\n".join((file, *sorted(identity))).encode()).hexdigest()
    place = {
        "artifactLocation": {"uri": quote(Path(file).as_posix()), "uriBaseId": _BASE},
        "region": {"startLine": line},
    }
    return {
        "ruleId": _RULE,
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": said},
        "locations": [{"physicalLocation": place}],
        "partialFingerprints": {"memoryGrowth/v1": fingerprint},
    }
