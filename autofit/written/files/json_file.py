"""JSON files of one tool."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.written.files.mappings import merge, require_own
from autofit_workers.spec.documents import DocumentError, parse_json

_INDENT = re.compile(r"\{\s*?\n([ \t]+)\"")
_USUAL_INDENT = "  "


@dataclass(frozen=True, slots=True)
class JsonFile:
    """JSON files of one tool.

    Attributes:
        signs: keys that such files have, of which one suffices to tell them from other tools' files.
        tool: name of the content, for messages.
    """

    signs: frozenset[str]
    tool: str

    def read(self, text: str) -> Mapping[str, Any]:
        if not text.strip():
            return {}
        try:
            return require_own(parse_json(text), self.signs, self.tool)
        except DocumentError as error:
            raise ValueError(str(error)) from error

    def merged(self, text: str | None, values: Mapping[str, Any]) -> str:
        found = {} if text is None else dict(self.read(text))
        merge(found, values)
        indent = _INDENT.search(text or "")
        end = "\n" if not text or text.endswith("\n") else ""
        return json.dumps(found, indent=indent[1] if indent else _USUAL_INDENT, ensure_ascii=False) + end
