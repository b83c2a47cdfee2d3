"""Functions that parse option values: from text or TOML to bytes, numbers, cards and others.

Each function raises `ValueError` with the expected form if it cannot parse a value.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from autofit.dispatch.requests import OWN_RESOURCES, SMALLEST_AMOUNT
from autofit.errors import did_you_mean
from autofit.hardware.gpus import Gpu, catalogue, find_gpu
from autofit.settings.goals import Batching, Maximized, Objective, Risk
from autofit.settings.parallels import NAME as PARALLEL
from autofit.settings.parallels import parallel_form
from autofit.units import parse_bytes, parse_percent
from autofit_workers.spec.knobs import KNOBS, Knob
from autofit_workers.spec.knobs.knob import Read, switch, whole_number
from autofit_workers.spec.knobs.knob import one_of as plain_one_of
from autofit_workers.spec.setup import ALL, MOST_RANKS, TYPICAL, WORST
from autofit_workers.spec.workloads.launcher_commands import launcher_command

ALL_CONV_ALGOS = ("all",)
ALL_CARDS = "all"


def text(value: Any) -> str:
    """Value of a text option without surrounding spaces; raises `ValueError` for an empty text."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected some text, got {value!r}")
    return value.strip()


def one_of(words: tuple[str, ...]) -> Read:
    """Parser that accepts one of several words, and raises `ValueError` for any other value.

    For another value it raises `ValueError`, whose message suggests similar words.
    """
    return _hinting(plain_one_of(words), words)


def _hinting(read: Read, words: tuple[str, ...]) -> Read:
    """Parser that calls `read`, and adds a suggestion of similar words to its error messages.

    Args:
        read: parser to call.
        words: words that are suggested if they are similar to the value.
    """

    def with_hint(value: Any) -> Any:
        try:
            return read(value)
        except ValueError as error:
            hint = did_you_mean(str(value), words)
            raise ValueError(f"{error}.{hint}" if hint else str(error)) from None

    return with_hint


def _items(value: Any, separator: str) -> list[Any]:
    """Items of an option's value, which is a list or one text.

    Args:
        separator: regular expression at which a text is split.

    Raises:
        ValueError: the value is neither a text nor a list, or an empty list.
    """
    if isinstance(value, str):
        return [item.strip() for item in re.split(separator, value)]
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{value!r} is not a list of values")
    return list(value)


def arguments(value: Any) -> tuple[str, ...]:
    """Arguments for a script, from a list or from one text that is split as a shell does.

    Raises:
        ValueError: the value is something else, or a quote in the text is not closed.
    """
    if isinstance(value, str):
        return tuple(shlex.split(value))
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{value!r} is no list of arguments")
    return tuple(value)


def names(value: Any) -> tuple[str, ...]:
    """Names of environment variables, from a list or from one text with commas.

    Raises:
        ValueError: an entry cannot be the name of a variable.
    """
    found = value.split(",") if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{value!r} is no list of names")
    stripped = tuple(each.strip() for each in found)
    if not all(re.fullmatch(r"[A-Za-z_]\w*", each) for each in stripped):
        raise ValueError(f"{value!r} is no name of a variable, such as HF_TOKEN")
    return stripped


def nonzero_share(value: Any) -> float:
    """Assumed share of a mask's elements that are true, parsed from a text such as `nonzero=0.5`.

    Raises:
        ValueError: the value has another form.
    """
    name, _, share = str(value).partition("=")
    try:
        found = float(share)
    except ValueError:
        found = math.nan
    if name.strip() != "nonzero" or not 0 <= found <= 1:
        raise ValueError(f"{value!r} is not nonzero=SHARE, with a share from 0 to 1, as in nonzero=0.5")
    return found


def rank(value: Any) -> int | None:
    """Number of a rank, from 0 on, parsed from a text; None for `all`, which stands for all ranks.

    Raises:
        ValueError: the value is neither.
    """
    text = str(value).strip()
    if text == ALL:
        return None
    if not text.isascii() or not text.isdecimal():
        raise ValueError(f"{value!r} is not a rank: expected a number from 0 on, or {ALL}")
    return int(text)


def gpu_numbers(value: Any) -> tuple[int, ...]:
    """Numbers of GPUs, ascending and each once, parsed from a text such as `1,2,4,8`.

    Raises:
        ValueError: an entry is not a whole number of 1 or more, or too large.
    """
    try:
        return tuple(sorted(set(map(whole_number(minimum=1, maximum=MOST_RANKS), _items(value, ",")))))
    except ValueError:
        raise ValueError(f"{value!r} is not a list of numbers of GPUs: write it as 1,2,4,8") from None


def launcher(value: Any) -> str:
    """Command that launches a script's processes, such as `torchrun --standalone`, after a check.

    Raises:
        ValueError: autofit does not know such a launcher.
    """
    text = str(value).strip()
    launcher_command(text)
    return text


def conv_algos(value: Any) -> tuple[str, ...]:
    """Names of the convolution algorithms to search, each once, from a list or a text with commas.

    For `all` the result is `ALL_CONV_ALGOS`, which stands for all that apply.

    Raises:
        ValueError: there is no such algorithm.
    """
    names = _items(value, ",")
    return (
        ALL_CONV_ALGOS
        if names == list(ALL_CONV_ALGOS)
        else tuple(dict.fromkeys(map(knob_value(KNOBS["conv_algo"]), names)))
    )


def knob_value(knob: Knob) -> Read:
    """Parser for the values of a knob, such as `precision`.

    For another value it raises `ValueError`, whose message suggests similar values.
    """
    return _hinting(lambda value: knob.read(knob.from_user(value)), knob.values)


def shape(value: Any) -> tuple[int, ...]:
    """Shape of one sample without the batch dimension, parsed from a text such as `3x224x224`.

    Raises:
        ValueError: the value has another form.
    """
    try:
        return tuple(map(whole_number(minimum=1), _items(value, "[x×]")))
    except ValueError:
        raise ValueError(f"{value!r} is not the shape of one sample: write it as 3x224x224") from None


def size(value: Any) -> int:
    """Size in bytes above 0, parsed from a text such as `16G`."""
    return parse_bytes(str(value))


def size_or_zero(value: Any) -> int:
    """Size in bytes, 0 or more, parsed from a text such as `16G`."""
    return 0 if str(value).strip() == "0" else size(value)


def margin(value: Any) -> Decimal:
    """Share of memory to keep free, parsed from a text such as `3%` or `0.03`.

    Raises:
        ValueError: the value has another form.
    """
    return parse_percent(str(value))


def _number(value: Any) -> float:
    """Finite number that a value stands for; nan if it stands for none."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return found if math.isfinite(found) else math.nan


def seconds(value: Any) -> float:
    """Number of seconds above 0, parsed from an option's value."""
    if not (found := _number(value)) > 0:
        raise ValueError(f"{value!r} is not a number of seconds: expected more than 0")
    return found


def seconds_or_zero(value: Any) -> float:
    """Number of seconds, 0 or more, parsed from an option's value."""
    if not (found := _number(value)) >= 0:
        raise ValueError(f"{value!r} is not a number of seconds: expected 0 or more")
    return found


def resources(value: Any) -> tuple[tuple[str, float], ...]:
    """Amounts of Ray's custom resources by name, parsed from `NAME=NUM,NAME=NUM` or a TOML table.

    Raises:
        ValueError: an amount is wrong or too small, or a name is given twice, or is that of a resource that
            autofit asks for itself.
    """
    pairs = (
        list(value.items())
        if isinstance(value, Mapping)
        else [str(item).partition("=")[::2] for item in _items(value, ",")]
    )
    amounts: dict[str, float] = {}
    for name, amount in ((str(name).strip(), _number(amount)) for name, amount in pairs):
        if not name or not amount >= SMALLEST_AMOUNT:
            raise ValueError(f"{value!r} is no amount of a resource: write NAME=NUM, such as rack_a=1")
        if name in OWN_RESOURCES or name in amounts:
            why = "autofit asks for itself" if name in OWN_RESOURCES else "is named twice"
            raise ValueError(f"{name} is a resource that {why}: name each custom resource once")
        amounts[name] = amount
    return tuple(amounts.items())


def batch_kind(value: Any) -> str:
    """Kind of batches to run: the longest possible if the switch `--worst-case` is on, else typical ones."""
    return WORST if switch(value) else TYPICAL


def searched(value: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Knobs to search, each with its values, parsed from the value of `--search`.

    Args:
        value: `KNOB=A,B;KNOB=C` as one text, a list of such texts, or a TOML table.

    Raises:
        ValueError: a knob is unknown or given twice, or a value is wrong.
    """
    pairs = (
        list(value.items())
        if isinstance(value, Mapping)
        else [str(item).partition("=")[::2] for given in _items(value, ";") for item in _items(given, ";")]
    )
    found: dict[str, tuple[Any, ...]] = {}
    for name, values in ((str(name).strip().replace("_", "-"), values) for name, values in pairs):
        if name == "conv-algo":
            raise ValueError("the convolution algorithms to search are those of --conv-algo A,B")
        if name not in SEARCHABLE:
            known = ", ".join(SEARCHABLE)
            raise ValueError(
                f"{name!r} is no knob to search: {known}.{did_you_mean(name, tuple(SEARCHABLE))}"
            )
        field = name.replace("-", "_")
        if field in found or values in ("", [], ()):
            why = "is named twice" if field in found else "has no values"
            raise ValueError(f"{name} {why}: write each knob once, as {name}=A,B")
        found[field] = tuple(dict.fromkeys(map(SEARCHABLE[name], _items(values, ","))))
    return tuple(found.items())


def risk(value: Any) -> Risk:
    """`Risk` (level of a predicted peak that has to fit) parsed from its name, such as `safe`."""
    return Risk(one_of(tuple(Risk))(value))


def batching(value: Any) -> Batching:
    """`Batching` (how batches are made of samples of different lengths) parsed from its name."""
    return Batching(one_of(tuple(Batching))(value))


def maximized(value: Any) -> Maximized:
    """`Maximized` (quantity that a search maximizes) parsed from its name."""
    return Maximized(one_of(tuple(Maximized))(value))


def objective(value: Any) -> Objective:
    """`Objective` (samples a step or samples a second) parsed from its name."""
    return Objective(one_of(tuple(Objective))(value))


def cards(value: Any) -> Gpu | tuple[Gpu, ...]:
    """GPU models parsed from `t4,a100-40g`, a TOML array, or `all` for the whole catalogue.

    Returns:
        The model itself if there is only one, else a tuple, each model once.

    Raises:
        UnknownGpuError: a name is not in the catalogue.
        ValueError: the value has another form.
    """
    if value == ALL_CARDS:
        return tuple(catalogue().values())
    names = _items(value, ",")
    if ALL_CARDS in names:
        raise ValueError(f"{ALL_CARDS} stands for every card: leave the others out")
    if len(names) > 1 and "" in names:
        raise ValueError(f"{value!r} lacks a name beside a comma: expected cards such as t4,a100-40g")
    cards = tuple(dict.fromkeys(find_gpu(text(name)) for name in names))
    return cards[0] if len(cards) == 1 else cards


# Names that `--search` takes: `parallel`, and all knobs but the convolution algorithm (see `--conv-algo`).
SEARCHABLE: dict[str, Read] = {
    **{knob.option: knob_value(knob) for knob in KNOBS.values() if knob.is_searchable},
    PARALLEL: parallel_form,
}
