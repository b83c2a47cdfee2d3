"""Text of command lines for a user to copy, with the options that were typed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from autofit.questions.advice import Advice, Combination


def as_typed(command: str, options: Mapping[str, Any]) -> str:
    """Text of an autofit command line with `options` by parameter name, without those that are not set."""
    words = []
    for name, value in options.items():
        if value in (None, False, ()):
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [f"--{name.replace('_', '-')}", *([] if each is True else [str(each)])]
    return shlex.join(["autofit", command, *words])


def fitting_command(combination: Combination, command: str, asked: Mapping[str, Any]) -> str:
    """Command line as typed, with the options replaced that have to change to make its configuration fit."""
    said = [word for option in combination.options for word in option.split() if word.startswith("--")]
    replaced = {word.removeprefix("--").removeprefix("no-").replace("-", "_") for word in said}
    kept = {name: value for name, value in asked.items() if name not in replaced}
    return " ".join((as_typed(command, kept), *combination.options))


def fitting_commands(advice: Advice | None, command: str, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Command line that makes a configuration fit, as a tuple; empty if there is none or nothing was typed.

    Args:
        asked: the command's options as they were typed.
    """
    if advice is None or advice.combination is None or not asked:
        return ()
    return (fitting_command(advice.combination, command, asked),)
