"""What a test sees of a command."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finished:
    """What a shell sees of a command that ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as the one JSON document that it must be."""
        parsed: dict[str, Any] = json.loads(self.out)
        return parsed
