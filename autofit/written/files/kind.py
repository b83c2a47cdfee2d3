"""Kind of configuration files, as the formats use one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class FileKind(Protocol):
    """Kind of files that values can be merged into, such as YAML files of one tool."""

    def read(self, text: str) -> Mapping[str, Any]:
        """Values that a file has, by key.

        Raises:
            ValueError: the file is broken, or another tool's; the message completes `FILE …`.
        """
        ...

    def merged(self, text: str | None, values: Mapping[str, Any]) -> str:
        """Text of a file with values changed or added; everything else is kept as it is.

        Args:
            text: text of the file that exists, which `read` takes; None for a new file.
            values: values by key; a mapping is merged into the mapping that is there.
        """
        ...
