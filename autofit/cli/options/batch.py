"""Files of `autofit submit --batch`: a job a line, as options of `submit` or as a JSON object.

Options beside `--batch` are those of every line that does not say otherwise. Three lines and a comment:

    # the nightly run
    davenet --gpu rtx-3090
    resnet50 --gpu rtx-3090,a100-40g --precision "amp-bf16"
    {"model": "gpt2", "gpu-mem": "16G", "seq-len": 512, "fresh": true}

A line is read as `submit` reads its own arguments, so that both have the same options and messages.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

import click
from click.core import ParameterSource

from autofit.errors import AutofitError, ExitCode, UsageError
from autofit_workers.spec.documents import parse_json

_MOST_JOBS = 10_000
_HELP = frozenset({"-h", "--help", "--help-all"})
_OF_ALL = {"batch": "--batch", "address": "--address", "storage": "--storage", "as_json": "--json"}


@dataclasses.dataclass(frozen=True, slots=True)
class BatchLine:
    """A job of a batch file.

    Attributes:
        where: name of the file with the number of the line, for messages.
        number: number of the line, from 1.
        options: values of the options of `submit` by the names of its parameters.
    """

    where: str
    number: int
    options: Mapping[str, Any]

    def error(self, error: AutofitError | click.ClickException) -> UsageError:
        """Error of this line, which names it."""
        message = error.message if isinstance(error, AutofitError) else error.format_message().rstrip(".")
        return UsageError(f"{self.where}: {message}; nothing was submitted")


def read_batch(file: TextIO, common: Mapping[str, Any]) -> list[BatchLine]:
    """Jobs of a batch file, in its order.

    Args:
        file: open file.
        common: values of the options beside `--batch`, which hold for every line that does not give its own.

    Raises:
        UsageError: a line is no job, or the file has none. The message names the line.
    """
    command = click.get_current_context().command
    lines: list[BatchLine] = []
    for number, text in _texts(file):
        line = BatchLine(f"{_name(file)}, line {number}", number, {})
        try:
            own = _own_options(command, _arguments(command, text))
        except (click.ClickException, UsageError) as error:
            raise line.error(error) from error
        lines.append(dataclasses.replace(line, options={**common, **own}))
        if len(lines) > _MOST_JOBS:
            raise UsageError(f"{_name(file)} has more than {_MOST_JOBS} jobs: submit it in parts")
    if not lines:
        raise UsageError(f"{_name(file)} has no jobs: give one a line, such as `davenet --gpu rtx-3090`")
    return lines


def as_usage_error(line: BatchLine, error: AutofitError) -> AutofitError:
    """The error of a line's job, with the line in its message if the line is to blame."""
    return line.error(error) if error.exit_code == ExitCode.USAGE else error


def _name(file: TextIO) -> str:
    return "standard input" if file.name == "<stdin>" else str(file.name)


def _texts(file: TextIO) -> Iterator[tuple[int, str]]:
    """Yields the number and the text of each line that is neither empty nor a comment."""
    try:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if text and not text.startswith("#"):
                yield number, text
    except ValueError as error:
        raise UsageError(f"{_name(file)} is no text in UTF-8: write a job a line") from error


def _arguments(command: click.Command, text: str) -> list[str]:
    """Arguments of the command that a line stands for; raises `UsageError` for a line that is malformed."""
    if text.startswith("{"):
        try:
            given = parse_json(text)
        except ValueError as error:
            raise UsageError(f"it is no JSON object in one line ({error})") from error
        return [argument for name, value in given.items() for argument in _of_json(command, name, value)]
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"a quotation mark is not closed ({error})") from error


def _of_json(command: click.Command, name: str, value: Any) -> list[str]:
    """Arguments for a key of a JSON line, which is an option's name with hyphens or underscores."""
    option = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        known = [each for each in command.params if option in each.opts]
        if known and isinstance(known[0], click.Option) and known[0].multiple:
            return [f"{option}={each}" for each in value]
        value = ",".join(map(str, value))
    if not isinstance(value, str | int | float):
        raise UsageError(f"the value of {name!r} is no text, number, true, false or list of these")
    return [f"{option}={value}"]


def _own_options(command: click.Command, arguments: list[str]) -> dict[str, Any]:
    """Values of the options that a line gives, by the names of the command's parameters."""
    if not _HELP.isdisjoint(arguments):
        raise UsageError("it asks for help instead of naming a job")
    with command.make_context(command.name, arguments) as context:
        own = {
            name: value
            for name, value in context.params.items()
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
    for name in own.keys() & _OF_ALL.keys():
        raise UsageError(f"{_OF_ALL[name]} is the same for all jobs: give it beside --batch")
    named = own.pop("named_model", None)
    if named is not None and own.setdefault("model", named) != named:
        raise UsageError(f"two models are named, {named} and --model {own['model']}: leave one out")
    return own
