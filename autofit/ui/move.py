"""Moves of the page's controls: read from requests, and written as settings, commands and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autofit.answers.words.commands import as_typed
from autofit.errors import UsageError
from autofit.settings.resolve import resolve_one_configuration
from autofit.settings.tune_settings import TuneSettings
from autofit_workers.spec.documents import DocumentError, parse_json
from autofit_workers.spec.knobs.knob import whole_number

# Options that the page has controls for, by their names as keyword arguments, in the order of commands.
OPTIONS = ("model", "gpu", "precision", "seq_len", "adapter", "base", "optimizer", "checkpointing")
_OWN = ("tab", "number", "batch_size")
_MOST_CHARACTERS = 4096  # of one value
_MOST_NAMED = 200  # of an unknown name, in a message
_DELETE = "\x7f"  # which JSON has as it is, and TOML has not


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Position of the page's controls.

    Attributes:
        tab: name that a browser's tab gave itself.
        number: number of the move in its tab; a larger one supersedes it.
        batch_size: samples a batch.
        options: values of options as they would be typed, by keyword argument; those not set are left out.
    """

    tab: str
    number: int
    batch_size: int
    options: Mapping[str, str]

    @classmethod
    def from_json(cls, body: bytes) -> Move:
        """Move that the body of a request holds.

        Raises:
            UsageError: it is not JSON, lacks a field or has an unknown one, or a value is none.
        """
        try:
            document = parse_json(body)
        except DocumentError as error:
            raise UsageError(f"the request {error}: reload the page") from error
        if not isinstance(document, dict):
            raise UsageError("the request is not an object of JSON: reload the page")
        if unknown := sorted(document.keys() - {*_OWN, *OPTIONS}):
            raise UsageError(
                f"the page has no control {unknown[0][:_MOST_NAMED]!r}: it has {', '.join(OPTIONS)}"
            )
        options = {name: _text(name, document[name]) for name in OPTIONS if document.get(name) is not None}
        return cls(
            tab=_text("tab", document.get("tab", "")),
            number=_number("number", document.get("number", 0), minimum=0),
            batch_size=_number("--batch-size", document.get("batch_size"), minimum=1),
            options={name: text for name, text in options.items() if text},
        )

    @property
    def settings(self) -> TuneSettings:
        """Settings that the options make; raises `UsageError` as the command line does."""
        return resolve_one_configuration(self.options, "an estimate")

    @property
    def commands(self) -> dict[str, str]:
        """Command lines of the same configuration, by the name of the command."""
        of_one = {**self.options, "batch_size": self.batch_size}
        one = "check" if "gpu" in self.options else "estimate"
        return {"tune": as_typed("tune", self.options), one: as_typed(one, of_one)}

    @property
    def settings_file(self) -> str:
        """Settings file of TOML for `autofit tune --config`, with the batch size as a comment."""
        lines = [f"{name.replace('_', '-')} = {_toml(value)}" for name, value in self.options.items()]
        return "\n".join((f"# batch size {self.batch_size}", "[tune]", *lines, ""))


def _text(name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) < 1 << 64 else "a number of more than 64 bits"
    if not isinstance(value, str):
        raise UsageError(f"{name}: a text is expected, as it is typed on the command line")
    if len(value) > _MOST_CHARACTERS:
        raise UsageError(f"{name}: {len(value)} characters are too many: give at most {_MOST_CHARACTERS}")
    return value.strip()


def _number(name: str, value: Any, *, minimum: int) -> int:
    try:
        return whole_number(minimum=minimum)(value)  # type: ignore[no-any-return]
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from error


def _toml(value: str) -> str:
    """String of TOML; every option is read from its text."""
    return json.dumps(value, ensure_ascii=False).replace(_DELETE, "\\u007f")
