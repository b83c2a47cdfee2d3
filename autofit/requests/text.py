"""Texts of requests: YAML, and comments, which begin with `#` in every format."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

_ANY_WIDTH = 1 << 16  # lines are not wrapped


def as_yaml(values: Mapping[str, Any]) -> str:
    """YAML text of mappings, lists, texts and numbers, in their order."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = _ANY_WIDTH
    yaml.default_flow_style = False
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump(_quoted(values), stream)
    return stream.getvalue()


def commented(lines: Iterable[str]) -> str:
    """Lines of comments."""
    return "".join(f"# {line}".rstrip() + "\n" for text in lines for line in text.splitlines())


def _quoted(value: Any) -> Any:
    """Values whose digits stay texts: Kubernetes takes no number for a label or an annotation."""
    from ruamel.yaml.scalarstring import DoubleQuotedScalarString

    if isinstance(value, Mapping):
        return {key: _quoted(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_quoted(each) for each in value]
    if isinstance(value, str) and value[:1].isdigit() and value.replace(".", "", 1).isdigit():
        return DoubleQuotedScalarString(value)
    return value
