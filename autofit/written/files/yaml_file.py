"""YAML files of one tool, whose comments are kept."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.written.files.mappings import merge, require_own

# Words that YAML 1.1, which most tools read, takes for true and false; others read 1.2, which does not.
_BOOLEANS = re.compile(r"(?i)y|n|yes|no|on|off|true|false|null|~")
_ANY_WIDTH = 1 << 16  # lines of the file are not wrapped


@dataclass(frozen=True, slots=True)
class YamlFile:
    """YAML files of one tool.

    Attributes:
        signs: keys that such files have, of which one suffices to tell them from other tools' files.
        tool: name of the content, for messages.
    """

    signs: frozenset[str]
    tool: str

    def read(self, text: str) -> Mapping[str, Any]:
        return require_own(_load(text), self.signs, self.tool)

    def merged(self, text: str | None, values: Mapping[str, Any]) -> str:
        from ruamel.yaml import YAML

        found = None if text is None else _load(text)
        if not found:
            comment = "" if text is None else text and text.rstrip("\n") + "\n"
            found = {}
        else:
            comment = ""
        merge(found, _plain(values))
        yaml = YAML()
        yaml.preserve_quotes = True
        yaml.width = _ANY_WIDTH
        if text is not None:
            _keep_indents(yaml, text)
        stream = io.StringIO()
        yaml.dump(found, stream)
        return comment + stream.getvalue()


def _load(text: str) -> Any:
    """Content of a YAML file, with its comments.

    Raises:
        ValueError: the text is no YAML, or has several documents.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    yaml = YAML()
    yaml.preserve_quotes = True
    try:
        return yaml.load(text)
    except (YAMLError, RecursionError, ValueError) as error:
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0] or "it nests too deep"
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" in line {mark.line + 1}"
        raise ValueError(f"is no YAML{where} ({problem})") from error


def _keep_indents(yaml: Any, text: str) -> None:
    """Has a file written with the indents that it has, and with its mark of a document's start."""
    from ruamel.yaml.util import load_yaml_guess_indent

    _, sequence, offset = load_yaml_guess_indent(text)
    nested = re.search(r"(?m)^[^\s#-][^#\n]*:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*( +)[^\s#-]", text)
    yaml.indent(mapping=len(nested[1]) if nested else 2, sequence=sequence or 2, offset=offset or 0)
    yaml.explicit_start = text.startswith("---")


def _plain(value: Any) -> Any:
    """Values with texts quoted that some tools would read as true or false."""
    from ruamel.yaml.scalarstring import SingleQuotedScalarString

    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, str) and _BOOLEANS.fullmatch(value):
        return SingleQuotedScalarString(value)
    return value
