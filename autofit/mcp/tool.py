"""Tool of the Model Context Protocol: its name, schemas, and how its arguments become a command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit.errors import UsageError

TEXT = "text"  # argument whose content is the command's standard input


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """Argument of a tool, which is an option or an argument of a command.

    Attributes:
        option: the option as it is typed, such as `--gpu-mem`; empty for the command's positional argument.
        negation: option that says the contrary of a switch, such as `--no-fresh`; empty if there is none.
        schema: JSON Schema of its values.
        is_required: whether the tool cannot be called without it.
    """

    option: str
    schema: dict[str, Any]
    negation: str = ""
    is_required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Tool that calls a command of autofit.

    Attributes:
        name: name of the tool.
        command: words of the command, with options that no argument changes.
        description: what it does, for an assistant.
        arguments: arguments by name.
        output_schema: JSON Schema of its documents.
        takes_text: whether `text` may stand in the place of the command's file.
    """

    name: str
    command: tuple[str, ...]
    description: str
    arguments: Mapping[str, Argument]
    output_schema: dict[str, Any] = field(default_factory=dict)
    takes_text: bool = False

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments; no other than the listed are taken."""
        properties = {name: each.schema for name, each in self.arguments.items()}
        if self.takes_text:
            properties[TEXT] = {"type": "string", "description": "The text itself, in the place of a file."}
        required = [name for name, each in self.arguments.items() if each.is_required]
        return {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }

    def command_line(self, given: Mapping[str, Any]) -> tuple[list[str], str]:
        """Words of the command for the given arguments, and its standard input.

        Raises:
            UsageError: arguments do not go together, or hold what no command line can.
        """
        words, positional = [*self.command, "--json", "--quiet"], []
        for name, value in given.items():
            if name == TEXT or value is None:
                continue
            argument = self.arguments[name]
            if not argument.option:
                positional.append(str(value))
            elif isinstance(value, bool):
                words += [switch] if (switch := argument.option if value else argument.negation) else []
            else:
                values = value if isinstance(value, list) else [value]
                words += [f"{argument.option}={each}" for each in values]
        text = given.get(TEXT)
        if self.takes_text and (text is None) == (not positional):
            raise UsageError(f"{self.name} takes either a file or its text: give one of them")
        if text is not None:
            positional = ["-"]
        elif "-" in positional:
            raise UsageError(f"{self.name} has no standard input here: give the text itself as `text`")
        if any("\0" in word for word in (*words, *positional)):
            raise UsageError(f"{self.name}: an argument has a NUL character, which no command line can have")
        return [*words, "--", *positional] if positional else words, text or ""
