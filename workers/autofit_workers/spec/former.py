"""Converts names of this package to and from those of versions 0.1 and 0.2, which stored records hold."""

from __future__ import annotations

import json
from pathlib import Path

_NAME = __package__.partition(".")[0]
_FORMER = "workers"
_HERE = Path(__file__).parents[1]
# In a checkout of today the package lies in a folder `workers/`; in version 0.2's it was that folder.
_FORMERLY_HERE = _HERE.parent if _HERE.parent.name == _FORMER else _HERE.parent / _FORMER
_PATH, _FORMER_PATH = (json.dumps(f"{folder}/")[1:-1] for folder in (_HERE, _FORMERLY_HERE))


def with_former_paths(text: str) -> str:
    """Replaces the paths of this package's files in a JSON text by the paths that they had in version 0.2."""
    return text.replace(_PATH, _FORMER_PATH)


def former_module(module: str) -> str:
    """Name that a module of this package had in version 0.2; returns other names unchanged."""
    return module.replace(_NAME, _FORMER, 1) if module.startswith(f"{_NAME}.") else module


def present_module(module: str) -> str:
    """Name that a module of version 0.2 has today; returns other names unchanged."""
    return module.replace(_FORMER, _NAME, 1) if module.startswith(f"{_FORMER}.") else module
