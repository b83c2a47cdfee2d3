"""Classes and parameters of `hf:` models beside transformers': `python tests/bench/models.py [--only REGEX]`.

Each line of `lists/models.toml` is a configuration of transformers. autofit reads it as a `config.json`, as a
user's; beside it transformers alone makes the class of that name on the meta device.

    class       is what autofit builds
    parameters  are as many as transformers' class has
    published   are as many as its authors state, give or take one of the last digit that they give

Ends with 1 where a class or a number differs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.pythons import read_toml
from autofit_workers.workload.libraries import of_transformers
from autofit_workers.workload.libraries.importing import imported

_LIST = Path(__file__).parent / "lists" / "models.toml"
_UNITS = {"": 1, "M": 10**6, "B": 10**9}
_META = torch.device("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A configuration of the list."""

    name: str
    type: str
    architecture: str
    values: dict[str, Any] = field(default_factory=dict)
    published: str = ""

    def document(self) -> dict[str, Any]:
        """Its `config.json`."""
        return {"model_type": self.type, "architectures": [self.architecture], **self.values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one."""

    name: str
    built: str
    num_parameters: int
    num_of_transformers: int
    is_class: bool
    is_published: bool | None

    @property
    def is_right(self) -> bool:
        """Whether class and numbers are as they should be."""
        is_counted = self.num_parameters == self.num_of_transformers
        return self.is_class and is_counted and self.is_published is not False


def listed() -> list[Listed]:
    """All models of the list."""
    models = read_toml(_LIST.read_text(encoding="utf-8"))["model"]
    return [
        Listed(
            name=each["name"],
            type=each["type"],
            architecture=each["class"],
            values=each.get("values", {}),
            published=each.get("published", ""),
        )
        for each in models
    ]


def tried(model: Listed, folder: Path) -> Row:
    """Reads a model's configuration by autofit and by transformers alone."""
    transformers: Any = imported("transformers", model.name)
    (folder / "config.json").write_text(json.dumps(model.document()))
    workload = of_transformers.load(WorkloadRef(kind="library", target=f"hf:{folder / 'config.json'}"))
    with torch.device(_META):
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        own = getattr(transformers, model.architecture)(config)
        built = workload.build_model()
    count = _count(built)
    return Row(
        name=model.name,
        built=type(built).__name__,
        num_parameters=count,
        num_of_transformers=_count(own),
        is_class=type(built) is type(own),
        is_published=_is_as_published(count, model.published) if model.published else None,
    )


def _count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _is_as_published(count: int, published: str) -> bool:
    number, unit = re.fullmatch(r"([\d.]+)([MB]?)", published).groups()
    last = 10.0 ** -len(number.partition(".")[2]) * _UNITS[unit]
    allowed = last if unit else 0
    return abs(count - float(number) * _UNITS[unit]) <= allowed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression that names are searched for")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    models = {each.name: each for each in listed() if re.search(arguments.only, each.name)}
    rows = []
    print("| model | class | parameters | transformers | published |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for model in models.values():
            row = tried(model, Path(folder))
            rows.append(row)
            published = f"{model.published} {'' if row.is_published else '**no**'}".rstrip()
            print(
                f"| {row.name} | {row.built} | {row.num_parameters:,} | {row.num_of_transformers:,} | "
                f"{published if model.published else ''} |",
                flush=True,
            )
    right = sum(row.is_right for row in rows)
    stated = sum(row.is_published is True for row in rows)
    print(f"\n{right} of {len(rows)} as transformers has them; {stated} as published")
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
