"""Writes a check of a lock for what shows it in review: Markdown, SARIF, and GitLab's code quality.

SARIF is that of version 2.1.0 (OASIS), as GitHub's code scanning reads it; code quality is GitLab's report of
that name. Both show a finding on its line, so they name lines of the project's own files; growth that has
none, such as that of weights, is shown where the lock has the configuration.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from autofit.answers.locks.changes import lock_check_sections
from autofit.answers.markdown import markdown
from autofit.identity import versions
from autofit.locks.checking import LockCheck
from autofit.locks.growth import Change, Comparison, LineChange
from autofit.units import format_bytes

_RULE = "memory-grew"
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_MOST_LINES = 10
_LEAST_SHARE = 0.02  # of a configuration's growth, which a line has at least to be a finding of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Growth of a configuration's memory at a place in a file.

    Attributes:
        message: sentence that says what grew.
        file: file, relative to the repository's folder, with `/` between folders.
        line: number of the line, from 1.
        fingerprint: digest that stays while the code does, though its line moves.
    """

    message: str
    file: str
    line: int
    fingerprint: str


def findings_of(check: LockCheck, folder: Path) -> tuple[Finding, ...]:
    """Findings of a check: for each configuration that grew the lines that hold more.

    Args:
        check: check of the lock.
        folder: folder of the project, which files of the check are relative to.
    """
    root = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)
    grown = (each for each in check.configurations if each.change is Change.GREW)
    return tuple(finding for each in grown for finding in _of_one(each, check, folder, root))


def _of_one(grown: Comparison, check: LockCheck, folder: Path, root: Path) -> Iterator[Finding]:
    assert grown.before is not None
    total = sum(line.difference_bytes for line in grown.grown_lines)
    shown = [
        line
        for line in grown.grown_lines
        if line.difference_bytes >= _LEAST_SHARE * total
        and line.file is not None
        and (folder / line.file).is_file()
    ][:_MOST_LINES]
    where = grown.name if grown.gpu == "any" else f"{grown.name} on {grown.gpu}"
    peak = (
        f"its peak grew from {format_bytes(grown.before.likely_bytes)} to "
        f"{format_bytes(grown.after.likely_bytes)}"
    )
    for line in shown:
        assert line.file is not None
        yield Finding(
            message=f"{_holds(line)} at the peak of {where}; {peak}",
            file=_relative(folder / line.file, root),
            line=line.line or 1,
            fingerprint=_digest(grown.name, grown.gpu, line.module, line.code),
        )
    if not shown:
        lock = folder / check.file
        yield Finding(
            message=f"{where}: {peak}",
            file=_relative(lock, root),
            line=_line_of(lock, grown.name),
            fingerprint=_digest(grown.name, grown.gpu),
        )


def _holds(line: LineChange) -> str:
    module = f" in {line.module}" if line.module else ""
    return f"this line holds {format_bytes(line.difference_bytes)} more{module}"


def _relative(path: Path, root: Path) -> str:
    absolute, base = path.absolute(), root.absolute()
    return absolute.relative_to(base).as_posix() if absolute.is_relative_to(base) else path.as_posix()


def _line_of(lock: Path, name: str) -> int:
    """Number of the line that begins a configuration in a lock; 1 if it is not found."""
    heads = (f"[configurations.{name}]", f"[configurations.{json.dumps(name)}]")
    lines = lock.read_text(encoding="utf-8").splitlines() if lock.is_file() else ()
    return next((number for number, line in enumerate(lines, 1) if line.strip() in heads), 1)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _markdown(check: LockCheck, _folder: Path) -> str:
    return markdown(lock_check_sections(check))


def _sarif(check: LockCheck, folder: Path) -> str:
    rule = {
        "id": _RULE,
        "name": "MemoryGrew",
        "shortDescription": {"text": "A training step needs more GPU memory than is locked"},
        "help": {
            "text": "If it is meant to: autofit lock, and commit memory.lock.toml. If not: autofit diff."
        },
        "defaultConfiguration": {"level": "error"},
    }
    results = [
        {
            "ruleId": _RULE,
            "ruleIndex": 0,
            "level": "error",
            "message": {"text": found.message},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": quote(str(PurePosixPath(found.file)))},
                        "region": {"startLine": found.line},
                    }
                }
            ],
            "partialFingerprints": {"autofit/v1": found.fingerprint},
        }
        for found in findings_of(check, folder)
    ]
    driver = {"name": "autofit", "version": versions()["autofit"], "rules": [rule]}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return _json({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]})


def _code_quality(check: LockCheck, folder: Path) -> str:
    return _json(
        [
            {
                "description": found.message,
                "check_name": _RULE,
                "fingerprint": found.fingerprint,
                "severity": "major",
                "location": {"path": found.file, "lines": {"begin": found.line}},
            }
            for found in findings_of(check, folder)
        ]
    )


def _json(document: object) -> str:
    return json.dumps(document, indent=2) + "\n"


FINDINGS: Mapping[str, Callable[[LockCheck, Path], str]] = {
    "markdown": _markdown,
    "sarif": _sarif,
    "code-quality": _code_quality,
}
"""Text of a check in each format, from the check and the project's folder."""
