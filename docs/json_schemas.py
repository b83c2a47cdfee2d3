"""Tables of the fields of all documents, as Markdown, from their JSON Schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from autofit.answers.schemas.json_schema import schemas


def tables() -> str:
    """Tables of the fields of all documents, and of the classes within them, as Markdown."""
    lines: list[str] = []
    classes: dict[str, dict[str, Any]] = {}
    for name, schema in schemas().items():
        file = f"schemas/{name}.json"
        title = schema["title"]
        lines += [f"## {title}", "", f"[JSON Schema]({file}).", "", *_table(schema), ""]
        classes |= schema["$defs"]
    for name, schema in sorted(classes.items()):
        lines += [f"## {name}", "", schema.get("description", ""), "", *_table(schema), ""]
    return "\n".join(lines)


def _table(schema: dict[str, Any]) -> Iterator[str]:
    yield "| key | type | holds |"
    yield "|---|---|---|"
    for key, kind in schema["properties"].items():
        holds = kind.get("description", "").replace("|", "\\|")
        yield f"| `{key}` | {_in_words(kind)} | {holds} |"


def _in_words(kind: dict[str, Any]) -> str:
    if "$ref" in kind:
        return _linked(kind["$ref"])
    if "anyOf" in kind:
        return " or ".join(_in_words(each) for each in kind["anyOf"])
    if values := kind.get("enum") or ([kind["const"]] if "const" in kind else []):
        return ", ".join(f"`{each}`" for each in values)
    if kind.get("type") == "array":
        return f"list of {_in_words(kind['items'])}" if "items" in kind else "list"
    if inner := kind.get("additionalProperties"):
        return f"object of {_in_words(inner)}"
    return str(kind.get("type", "any"))


def _linked(reference: str) -> str:
    """Link to the table of a class, or of another document."""
    if reference.startswith("#"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    title = reference.removesuffix(".json").replace("-1", "/1")
    return f"[{title}](#{re.sub(r'[^a-z-]', '', title)}1)"
