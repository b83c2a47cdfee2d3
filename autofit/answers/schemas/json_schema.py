"""Class with its docstring as a JSON Schema; meanings of fields are those that docstrings state."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import re
import types
import typing
from typing import Any

from autofit.answers.schemas.documents import DOCUMENTS, Document
from autofit.hardware.budget import Budget
from autofit.locks.documents import PROPERTIES
from autofit.predict.estimate import Estimate

# Properties that documents have of classes within them.
_PROPERTIES: dict[type, tuple[str, ...]] = {Budget: ("usable_bytes",), **PROPERTIES}
# Classes whose place in a document is taken by a document of their own.
_WITHIN = {document.main: schema for schema, document in DOCUMENTS.items() if document.main is not None}
_ENTRY = re.compile(r"^(\w+(?:, \w+)*): (.*)$")
_NONE = re.compile(r"`?\bNone\b`?")
_SEE = re.compile(r"^see `Estimate`(?:; (.*))?$", re.DOTALL)
_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def file_stem(schema: str) -> str:
    """Name that a file of a schema has, such as `autofit.tune-1` of `autofit.tune/1`."""
    return schema.replace("/", "-")


def schemas() -> dict[str, dict[str, Any]]:
    """JSON Schema of each document by `file_stem`; documents within it are references to their files."""
    return {file_stem(schema): _schema(schema, document) for schema, document in DOCUMENTS.items()}


def published(stem: str) -> dict[str, Any]:
    """JSON Schema of a document that can be used alone: with those of the documents within it in `$defs`.

    Args:
        stem: name of the document as `file_stem` makes it.
    """
    found = schemas()
    whole = found[stem]
    within: dict[str, Any] = {}
    waiting = [whole]
    while waiting:
        for name in _referred(waiting.pop()) - within.keys() - {stem}:
            within[name] = {"$id": f"{name}.json", **found[name]}
            waiting.append(found[name])
    return {**whole, "$defs": {**whole["$defs"], **dict(sorted(within.items()))}}


def _referred(part: Any) -> set[str]:
    """Names of the other documents that a part of a schema refers to."""
    if isinstance(part, list):
        return set().union(*map(_referred, part))
    if not isinstance(part, dict):
        return set()
    reference = part.get("$ref", "")
    own = set() if not reference or reference.startswith("#") else {reference.removesuffix(".json")}
    return own.union(*map(_referred, part.values()))


def _schema(schema: str, document: Document) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {}
    fields: dict[str, dict[str, Any]] = {"schema": {"const": schema}}
    if document.main is not None:
        fields |= _fields(document.main, known)
        fields |= {name: _of_property(document.main, name, known) for name in document.properties}
    estimate = _fields(Estimate, known) if document.of_estimate else {}
    for name in document.of_estimate:
        fields[name] = _or_null(estimate[name])
    for name, kind, meaning in document.more:
        fields[name] = {**_kind(kind, known), "description": meaning}
    required = list(fields)
    for name, kind, meaning in document.optional:
        fields[name] = {**_kind(kind, known), "description": meaning}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": schema,
        "type": "object",
        "properties": fields,
        "required": required,
        "$defs": dict(sorted(known.items())),
    }


def _fields(cls: type, known: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    hints, meanings = typing.get_type_hints(cls), _meanings(cls)
    fields = {}
    for field in dataclasses.fields(cls):
        fields[field.name] = _kind(hints[field.name], known)
        if meaning := meanings.get(field.name):
            fields[field.name] = {**fields[field.name], "description": meaning}
    for name in _PROPERTIES.get(cls, ()):
        fields[name] = _of_property(cls, name, known)
    return fields


def _of_property(cls: type, name: str, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    getter = getattr(cls, name).fget
    kind = _kind(typing.get_type_hints(getter)["return"], known)
    return {**kind, "description": _first_line(getter)}


def _kind(hint: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """JSON Schema of a type; classes with fields are put among those that are known."""
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    return _of_class(hint, known) if isinstance(hint, type) else _of_generic(hint, known)


def _of_class(cls: type, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if issubclass(cls, enum.Enum):
        return {"enum": [each.value for each in cls]}
    if cls in _WITHIN:
        return {"$ref": f"{_WITHIN[cls].replace('/', '-')}.json"}
    return _reference(cls, known) if dataclasses.is_dataclass(cls) else {}


def _of_generic(hint: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_kind(each, known) for each in arguments]}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[1:] != (...,):
        return {"type": "array", "prefixItems": [_kind(each, known) for each in arguments]}
    if origin in (tuple, list, frozenset, collections.abc.Sequence):
        return {"type": "array", "items": _kind(arguments[0], known)}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object", "additionalProperties": _kind(arguments[1], known)}
    return {}


def _reference(cls: type, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if cls.__name__ not in known:
        known[cls.__name__] = {}  # a class may hold itself
        fields = _fields(cls, known)
        known[cls.__name__] = {
            "description": _first_line(cls),
            "type": "object",
            "properties": fields,
            "required": list(fields),
        }
    return {"$ref": f"#/$defs/{cls.__name__}"}


def _or_null(kind: dict[str, Any]) -> dict[str, Any]:
    """Schema that allows null besides a kind."""
    choices = kind.get("anyOf", [{key: value for key, value in kind.items() if key != "description"}])
    described = {"description": kind["description"]} if "description" in kind else {}
    return {"anyOf": [*(each for each in choices if each != {"type": "null"}), {"type": "null"}], **described}


def _first_line(documented: Any) -> str:
    return (documented.__doc__ or "").strip().split("\n")[0]


def _meanings(cls: type) -> dict[str, str]:
    """Meaning of each attribute that a class's docstring describes."""
    section = re.search(r"^ *Attributes:\n(.*?)(?=\n\S|\Z)", cls.__doc__ or "", re.MULTILINE | re.DOTALL)
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in section[1].splitlines() if section else ():
        entry = _ENTRY.match(line.strip())
        if entry and len(line) - len(line.lstrip()) == 8:
            names = entry[1].split(", ")
            meanings |= dict.fromkeys(names, entry[2])
        else:
            meanings |= {name: f"{meanings[name]} {line.strip()}".strip() for name in names}
    return {name: _NONE.sub("null", _resolved(name, text)) for name, text in meanings.items()}


def _resolved(name: str, text: str) -> str:
    """Meaning of an attribute, with that of the estimate's where it only points there."""
    if see := _SEE.match(text):
        there = _meanings(Estimate).get(name, "as in an estimate")
        return f"{there} {see[1]}" if see[1] else there
    return text
