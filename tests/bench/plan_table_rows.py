"""cuDNN's answers, as they are kept between asking and building the table."""

from __future__ import annotations

import dataclasses
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit_workers.replay.plans.plan import Plan
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import convolution_from_dict
from autofit_workers.spec.work import Convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The plans of one call.

    Attributes:
        family: of the models that the call comes from.
        plans: as far as any policy could take them.
    """

    family: str
    call: Convolution
    plans: tuple[Plan, ...]

    def to_row(self) -> list[Any]:
        plans = [[p.workspace_bytes, p.uses_tensor_cores, p.is_deterministic] for p in self.plans]
        return [self.family, dataclasses.asdict(self.call), plans]

    @classmethod
    def from_row(cls, row: list[Any]) -> Self:
        family, call, plans = row
        return cls(
            family=family,
            call=convolution_from_dict(call),
            plans=tuple(Plan(-1, size, bool(cores), bool(certain)) for size, cores, certain in plans),
        )


def write_answers(folder: Path, name: str, answers: list[Answer]) -> None:
    """Writes the file of one architecture, version and type."""
    text = json.dumps([answer.to_row() for answer in answers], separators=(",", ":"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), compresslevel=5, mtime=0))


def kept_answers(folder: Path, name: str) -> list[Answer]:
    """The answers of one architecture, version and type; none where there is no such file."""
    path = folder / f"{name}.json.gz"
    return _read(path) if path.exists() else []


def read_answers(folder: Path) -> dict[tuple[str, str], list[Answer]]:
    """All answers, by architecture and version."""
    found: dict[tuple[str, str], list[Answer]] = {}
    for path in sorted(folder.glob("*.json.gz")):
        architecture, version, _dtype = path.name.removesuffix(".json.gz").split("-")
        found.setdefault((architecture, version), []).extend(_read(path))
    return found


def _read(path: Path) -> list[Answer]:
    return list(map(Answer.from_row, json.loads(gzip.decompress(path.read_bytes()))))
