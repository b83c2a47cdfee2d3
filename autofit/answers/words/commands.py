"""Text of command lines for a user to copy, with the options that were typed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from autofit.questions.advice import Advice, Combination


def as_typed(command: str, options: Mapping[str, Any]) -> str:
    """Text of an autofit command line, quoted for a shell: `autofit tune --model gpt2 --gpu t4`.

    Args:
        command: name of the autofit command, such as `tune`.
        options: values by parameter name, such as `gpu_mem`. None, False and empty tuples are left out, and
            so is `fresh`; True gives an option without a value, a tuple one option for each item.
    """
    words = []
    for name, value in options.items():
        if value in (None, False, ()) or name == "fresh":  # the traces are new already
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [f"--{name.replace('_', '-')}", *([] if each is True else [str(each)])]
    return shlex.join(["autofit", command, *words])


def fitting_command(combination: Combination, command: str, asked: Mapping[str, Any]) -> str:
    """Typed command line with the changed options that make its configuration fit in memory.

    Args:
        combination: options that make it fit; they replace typed options of the same name.
        command: name of the autofit command, such as `check`.
        asked: typed options, from parameter name to value.
    """
    said = [word for option in combination.options for word in option.split() if word.startswith("--")]
    replaced = {word.removeprefix("--").removeprefix("no-").replace("-", "_") for word in said}
    kept = {name: value for name, value in asked.items() if name not in replaced}
    return " ".join((as_typed(command, kept), *combination.options))


def fitting_commands(advice: Advice | None, command: str, asked: Mapping[str, Any]) -> tuple[str, ...]:
    """Tuple with the command line that makes a configuration fit; empty if none is known.

    Args:
        advice: changes that were tried; None if none were.
        command: name of the autofit command, such as `check`.
        asked: typed options, from parameter name to value. If empty, there is no command line to change, and
            the result is empty.
    """
    if advice is None or advice.combination is None or not asked:
        return ()
    return (fitting_command(advice.combination, command, asked),)
