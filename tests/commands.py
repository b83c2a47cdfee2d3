"""Result of a command, as tests see it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finished:
    """Exit code and outputs of a command that ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output parsed as one JSON document."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed
