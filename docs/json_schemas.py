"""JSON Schemas of the documents that commands print, read from the classes that the documents are made of.

A document is a class's fields, and a few of its properties; meanings are those of the docstrings. A test
holds the documents that the site's commands print against these schemas.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autofit.hardware.budget import Budget
from autofit.predict.convolutions.plan import PLAN_SCHEMA, ConvPlan
from autofit.predict.estimate import ESTIMATE_SCHEMA, Estimate
from autofit.questions.advice import Advice
from autofit.questions.cards import CARDS_SCHEMA, CardsAnswer
from autofit.questions.check import CHECK_SCHEMA, CheckResult
from autofit.questions.observed_run import RUN_SCHEMA, ObservedRun
from autofit.questions.snapshot import SNAPSHOT_SCHEMA, ObservedSnapshot
from autofit.tuning.result import TUNE_SCHEMA, TuneResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Document that a command prints: the fields of a class, and properties besides them.

    Attributes:
        main: the class whose fields it has.
        properties: names of properties of that class that it has too.
        of_estimate: names of fields that it takes from the class of its estimate.
        more: other keys, by name, with their type and meaning.
        optional: likewise keys that only some options bring.
    """

    main: type
    properties: tuple[str, ...] = ()
    of_estimate: tuple[str, ...] = ()
    more: tuple[tuple[str, Any, str], ...] = ()
    optional: tuple[tuple[str, Any, str], ...] = ()


DOCUMENTS = {
    TUNE_SCHEMA: Document(
        main=TuneResult,
        properties=("assumptions", "unknowns", "step_seconds", "epoch_seconds", "samples_per_step"),
        of_estimate=("model_class", "num_parameters", "samples_per_second", "batch_source"),
        more=(("num_trials", int, "number of the trials."),),
    ),
    ESTIMATE_SCHEMA: Document(
        main=Estimate,
        properties=("peak_phase", "samples_per_step"),
        optional=(
            ("method", str, "`simulate` or `summary`; not within other documents."),
            ("epoch_seconds", float | None, "with `--samples`, how long that many take."),
            ("what_if", list[dict[str, Any]], "with `--what-if`, for each lever what it saves."),
            ("advice", Advice | None, "with `--what-if`, what makes it fit on the card that is named."),
            ("summary", dict[str, Any], "with `--method summary`, the account of layers."),
            ("difference", dict[str, Any], "with `--method summary`, what a real step adds to it or saves."),
        ),
    ),
    CHECK_SCHEMA: Document(main=CheckResult, properties=("would_thrash", "epoch_seconds")),
    CARDS_SCHEMA: Document(main=CardsAnswer),
    PLAN_SCHEMA: Document(main=ConvPlan),
    SNAPSHOT_SCHEMA: Document(main=ObservedSnapshot),
    RUN_SCHEMA: Document(main=ObservedRun),
}
# Properties that documents have of classes within them.
_PROPERTIES: dict[type, tuple[str, ...]] = {Budget: ("usable_bytes",)}
# Classes whose place in a document is taken by a document of their own.
_WITHIN = {document.main: schema for schema, document in DOCUMENTS.items()}
_ENTRY = re.compile(r"^(\w+(?:, \w+)*): (.*)$")
_NONE = re.compile(r"`?\bNone\b`?")
_SEE = re.compile(r"^see `Estimate`(?:; (.*))?$", re.DOTALL)
_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def schemas() -> dict[str, dict[str, Any]]:
    """Each document's JSON Schema, by a name that a file can have."""
    return {schema.replace("/", "-"): _schema(schema, document) for schema, document in DOCUMENTS.items()}


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


def _schema(schema: str, document: Document) -> dict[str, Any]:
    known: dict[str, dict[str, Any]] = {}
    fields = {"schema": {"const": schema}, **_fields(document.main, known)}
    for name in document.properties:
        fields[name] = _of_property(document.main, name, known)
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
