"""Writes a check of a lock for what shows it in review: Markdown, SARIF, and GitLab's code quality.

SARIF is that of version 2.1.0 (OASIS), as GitHub's code scanning reads it; code quality is GitLab's report of
that name. Both show a finding on its line, so they name lines of the project's own files; growth that has
none, such as that of weights, is shown where the lock has the configuration.
"""

from __future__ import annotations

import collections
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from autofit.answers.locks.changes import difference, lock_check_sections, signed
from autofit.answers.markdown import markdown
from autofit.identity import versions
from autofit.locks.checking import LockCheck
from autofit.locks.growth import Change, Comparison, LineChange
from autofit.locks.lock_file import ANY_CARD

_RULE = "memory-grew"
_SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_MOST_LINES = 10
_DIGITS = 32  # of a fingerprint
_LEAST_SHARE = 0.02  # of a configuration's growth, which a line has at least to be a finding of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Growth of memory at a place in a file, of one configuration or of several.

    Attributes:
        message: a sentence for each configuration and module.
        file: file, relative to the repository's folder, with `/` between folders.
        line: number of the line, from 1.
        fingerprint: digest that stays while the code does, though its line moves.
    """

    message: str
    file: str
    line: int
    fingerprint: str


_Grown = tuple[Comparison, LineChange | None]


def findings_of(check: LockCheck, folder: Path) -> tuple[Finding, ...]:
    """Findings of a check, by file and line: the lines that hold more in configurations that grew.

    Args:
        check: check of the lock.
        folder: folder of the project, which files of the check are relative to.
    """
    root = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)
    by_place = collections.defaultdict[tuple[str, int], list[_Grown]](list)
    for each in check.configurations:
        if each.change is not Change.GREW:
            continue
        lines = _lines_of(each, folder)
        for line in lines:
            assert line.file is not None
            by_place[_relative(folder / line.file, root), line.line or 1].append((each, line))
        if not lines:
            lock = folder / check.file
            by_place[_relative(lock, root), _line_of(lock, each.name)].append((each, None))
    return tuple(_finding(file, line, found) for (file, line), found in sorted(by_place.items()))


def _lines_of(each: Comparison, folder: Path) -> Sequence[LineChange]:
    """Lines of files of the project that have a part of a configuration's growth that matters."""
    lines = [line for line in each.grown_lines if line.file is not None and (folder / line.file).is_file()]
    total = sum(line.difference_bytes for line in lines)
    return [line for line in lines if line.difference_bytes >= _LEAST_SHARE * total][:_MOST_LINES]


def _finding(file: str, line: int, found: Sequence[_Grown]) -> Finding:
    known = sorted(
        "\0".join((each.name, each.gpu, *(() if change is None else (change.module, change.code))))
        for each, change in found
    )
    return Finding(
        message=" ".join(_sentence(each, change) for each, change in found),
        file=file,
        line=line,
        fingerprint=hashlib.sha256("\n".join((file, *known)).encode()).hexdigest()[:_DIGITS],
    )


def _sentence(each: Comparison, line: LineChange | None) -> str:
    where = each.name if each.gpu == ANY_CARD else f"{each.name} on {each.gpu}"
    if line is None:
        return f"{where}: the peak changed by {_change(each)}, by no line of this project."
    module = f" in {line.module}" if line.module else ""
    by = signed(line.difference_bytes)
    return f"{where}: this line{module} holds {by} at the peak, which changed by {_change(each)}."


def _change(each: Comparison) -> str:
    """Difference of the likely reserved peak, or where that is none, of the allocated one."""
    assert each.before is not None
    if each.difference_bytes > 0:
        return difference(each.before.likely_bytes, each.after.likely_bytes)
    return difference(each.before.allocated_bytes, each.after.allocated_bytes)


def _relative(path: Path, root: Path) -> str:
    absolute, base = path.absolute(), root.absolute()
    return absolute.relative_to(base).as_posix() if absolute.is_relative_to(base) else path.as_posix()


def _line_of(lock: Path, name: str) -> int:
    """Number of the line that begins a configuration in a lock; 1 if it is not found."""
    heads = (f"[configurations.{name}]", f"[configurations.{json.dumps(name)}]")
    lines = lock.read_text(encoding="utf-8").splitlines() if lock.is_file() else ()
    return next((number for number, line in enumerate(lines, 1) if line.strip() in heads), 1)


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
