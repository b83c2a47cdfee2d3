"""Commands of autofit as tools for assistants: each option of a command is an argument of its tool.

A new option of a command is an argument by itself, unless it is of those that are named below:
what writes files, runs something for real, lifts a guard of predicted scripts, or only shapes a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from autofit.answers.schemas.json_schema import published
from autofit.cli.options.pages import TopicOption
from autofit.mcp.tool import Argument, Tool
from autofit.settings.options import Topic

# Topics of options that no tool has: places and permissions are the user's to choose, and outputs are files.
_TOPICS = (Topic.TRIALS, Topic.LIMITS, Topic.OUTPUT, Topic.JOBS)
_TAKEN_STILL = ("max_host_memory",)
_NOWHERE = ("named_model", "config", "keep_trackers")
_OF_REAL_RUNS = ("probe", "device")
_TOOLS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("tune", ("tune", "--probe=predict"), ("tune", "tune-cards")),
    ("estimate", ("estimate",), ("estimate", "cards")),
    ("check", ("check",), ("check", "cards")),
    ("cards", ("cards",), ("cards",)),
    ("kv", ("kv",), ("kv",)),
    ("profile", ("profile",), ("profile-view",)),
    ("explain", ("explain",), ("explained-error", "observed-snapshot")),
)
_MOST = 2**53 - 1  # whole numbers that every reader of JSON knows exactly
_TEXT: dict[str, Any] = {"type": ["string", "number"]}


def tools(commands: Mapping[str, click.Command]) -> tuple[Tool, ...]:
    """Tools that call the commands of autofit that answer a question."""
    return tuple(
        Tool(
            name=name,
            command=command,
            description=_described(commands[command[0]]),
            arguments=dict(_arguments(commands[command[0]])),
            output_schema=_one_of(documents),
            takes_text=name == "explain",
        )
        for name, command, documents in _TOOLS
    )


def _described(command: click.Command) -> str:
    """Help of a command without what is of command lines alone."""
    paragraphs = [" ".join(each.split()) for each in (command.help or "").split("\n\n")]
    return "\n\n".join(each for each in paragraphs if not each.startswith("Exit codes"))


def _arguments(command: click.Command) -> Iterator[tuple[str, Argument]]:
    for each in command.params:
        name = each.name or ""
        if isinstance(each, click.Argument):
            if name not in _NOWHERE:
                schema = {"type": "string", "description": "Path of the file."}
                yield name, Argument(option="", schema=schema)
        elif isinstance(each, click.Option) and _is_taken(command, each):
            option = max(each.opts, key=len)
            yield (
                option.removeprefix("--").replace("-", "_"),
                Argument(
                    option=option,
                    schema={**_kind(each), "description": " ".join((each.help or "").split())},
                    negation=max(each.secondary_opts, key=len, default=""),
                    is_required=each.required,
                ),
            )


def _is_taken(command: click.Command, option: click.Option) -> bool:
    if option.hidden or not option.expose_value or option.name in ("quiet", "as_json"):
        return False
    if option.name in _OF_REAL_RUNS and command.name == "tune":
        return False
    topic = option.topic if isinstance(option, TopicOption) else None
    return option.name in _TAKEN_STILL or (topic not in _TOPICS and option.name not in _NOWHERE)


def _kind(option: click.Option) -> dict[str, Any]:
    """JSON Schema of an option's values; texts may be given as numbers, as they are typed."""
    if option.is_flag or option.secondary_opts:
        return {"type": "boolean"}
    kind = _of_type(option.type)
    return {"type": "array", "items": kind} if option.multiple else kind


def _of_type(kind: object) -> dict[str, Any]:
    if isinstance(kind, click.IntRange):
        least = {} if kind.min is None else {"minimum": kind.min}
        return {"type": "integer", **least, "maximum": _MOST if kind.max is None else kind.max}
    if isinstance(kind, click.Choice):
        return {"enum": list(kind.choices)}
    if isinstance(kind, type(click.INT)):
        return {"type": "integer", "minimum": -_MOST, "maximum": _MOST}
    return {"type": "number"} if isinstance(kind, type(click.FLOAT)) else dict(_TEXT)


def _one_of(documents: Sequence[str]) -> dict[str, Any]:
    """JSON Schema of an answer that is one of several documents, without the meanings of their fields."""
    names = [f"autofit.{document}-1" for document in documents]
    schemas: dict[str, Any] = {}
    for name in names:
        whole = _bare(published(name))
        within = {key: value for key, value in whole["$defs"].items() if "$id" in value}
        own = {key: value for key, value in whole["$defs"].items() if "$id" not in value}
        schemas |= {**within, name: {"$id": f"{name}.json", **whole, "$defs": own}}
    return {
        "type": "object",
        "anyOf": [{"$ref": f"{name}.json"} for name in names],
        "$defs": schemas,
    }


def _bare(part: Any) -> Any:
    """Copy of a schema without descriptions; a field of this name stays."""
    if isinstance(part, list):
        return [_bare(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {key: _bare(value) for key, value in part.items() if not _is_meaning(key, value)}


def _is_meaning(key: str, value: Any) -> bool:
    return key == "$schema" or (key == "description" and isinstance(value, str))
