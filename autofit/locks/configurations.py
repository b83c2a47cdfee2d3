"""Configurations to be locked: from `[tool.autofit.lock]` of pyproject.toml, from options, or from a lock.

    [tool.autofit.lock]
    tolerance = "2%"

    [tool.autofit.lock.configurations.davenet-64]
    model = "davenet"
    batch-size = 64
    gpu = ["rtx-3090", "t4"]
    largest-batch = true

The keys of a configuration are the long options of `autofit estimate`; `largest-batch` asks for the largest
batch that fits each card too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from autofit.errors import UsageError, did_you_mean
from autofit.locks.growth import DEFAULT_TOLERANCE
from autofit.locks.lock_file import Lock, LockedConfiguration, LockError, require_name
from autofit.settings.options import OPTIONS
from autofit.settings.resolve import chosen_cards, resolve_one_configuration
from autofit.units import parse_percent
from autofit_workers.spec.documents import DocumentError, parse_toml, read_file

PROJECT_FILE = "pyproject.toml"
TABLE = "tool.autofit.lock"
WHAT = "a lock"  # in messages on options that only a search has
BATCH_SIZE, LARGEST_BATCH = "batch_size", "largest_batch"

_OF_SEARCH = frozenset(option.argument for option in OPTIONS.values() if option.of_search)
_IGNORED = frozenset({"fresh", "config"})  # of the call, not of the configuration
_KNOWN = {
    **{
        option.argument: option.name
        for option in OPTIONS.values()
        if option.argument not in _OF_SEARCH | _IGNORED
    },
    BATCH_SIZE: "batch-size",
    LARGEST_BATCH: "largest-batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Configuration to be predicted, under its name.

    Attributes:
        name: its name in the lock.
        options: options of `autofit estimate` by name with `_` for `-`, but those below.
        batch_size: samples a batch; None for a script's own.
        gpus: keys of the cards; empty where none is named.
        wants_largest_batch: whether the largest batch that fits each card is asked for.
    """

    name: str
    options: Mapping[str, Any]
    batch_size: int | None = None
    gpus: tuple[str, ...] = ()
    wants_largest_batch: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """Options as they are typed after `autofit estimate`, the same for equal configurations."""
        named: dict[str, Any] = dict(self.options)
        named[BATCH_SIZE] = self.batch_size
        named["gpu"] = ",".join(self.gpus) or None
        named[LARGEST_BATCH] = self.wants_largest_batch
        words: list[str] = []
        for argument, option in _KNOWN.items():
            value = named.get(argument)
            if value in (None, False, (), []):
                continue
            for each in value if isinstance(value, tuple | list) else (value,):
                words += [f"--{option}"] if each is True else [f"--{option}", str(each)]
        return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """Content of `[tool.autofit.lock]`.

    Attributes:
        tolerance: share of a peak by which it may grow.
        configurations: configurations by name, in the order of the file.
    """

    tolerance: Decimal = DEFAULT_TOLERANCE
    configurations: Mapping[str, Configuration] = field(default_factory=dict)

    def with_those_of(self, lock: Lock) -> Mapping[str, Configuration]:
        """Configurations by name, and those that a lock alone has with their options.

        Raises:
            LockError: the lock's options of one are wrong.
        """
        described = {
            name: configuration_of(each)
            for name, each in lock.configurations.items()
            if each.arguments and name not in self.configurations
        }
        return {**self.configurations, **described}


def chosen(known: Mapping[str, Configuration], names: Sequence[str]) -> tuple[Configuration, ...]:
    """Configurations of some names, or all if there are none.

    Args:
        known: configurations by name.
        names: names that were asked for.

    Raises:
        UsageError: a name is unknown, or nothing is configured.
    """
    if not known:
        raise UsageError(
            f"nothing is configured to be locked: add a table [{TABLE}.configurations.NAME] with model and "
            f"batch-size to {PROJECT_FILE} of this folder, or give --name, --model and --batch-size"
        )
    for name in names:
        if name not in known:
            raise UsageError(
                f"{PROJECT_FILE} has no [{TABLE}.configurations.{name}].{did_you_mean(name, known)} "
                f"It has {', '.join(known)}"
            )
    return tuple(each for name, each in known.items() if not names or name in names)


def read_configured(folder: Path) -> Configured:
    """Content of `[tool.autofit.lock]` of a folder's pyproject.toml; empty if there is none.

    Raises:
        UsageError: the file cannot be read, or something of the table is wrong; the message says where.
    """
    path = folder / PROJECT_FILE
    if not path.exists():
        return Configured()
    try:
        document: Any = parse_toml(read_file(path))
    except OSError as error:
        raise UsageError(f"cannot read {PROJECT_FILE}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{PROJECT_FILE} is not UTF-8 text: save it as UTF-8") from error
    except DocumentError as error:
        raise UsageError(f"{PROJECT_FILE} {error}") from error
    for key in TABLE.split("."):
        document = _table(document.get(key, {}), f"[{TABLE}]")
    return _configured(document)


def _configured(table: Mapping[str, Any]) -> Configured:
    known = ("tolerance", "configurations")
    if unknown := sorted(table.keys() - set(known)):
        raise UsageError(
            f"{PROJECT_FILE}, [{TABLE}]: unknown key {unknown[0]!r}.{did_you_mean(unknown[0], known)} "
            f"Configurations are tables [{TABLE}.configurations.NAME]"
        )
    tables = _table(table.get("configurations", {}), f"[{TABLE}.configurations]")
    where = f"{PROJECT_FILE}, [{TABLE}.configurations."
    return Configured(
        tolerance=tolerance_of(table.get("tolerance"), f"{PROJECT_FILE}, [{TABLE}] tolerance"),
        configurations={
            name: _of_table(require_name(name), _table(each, f"{where}{name}]"), f"{where}{name}]")
            for name, each in tables.items()
        },
    )


def tolerance_of(value: object, label: str) -> Decimal:
    """Tolerance from a text such as `2%`, or from a share such as 0.02; the default for None.

    Args:
        value: the value as it was given.
        label: name of the option or key, for messages.

    Raises:
        UsageError: it is no share.
    """
    if value is None:
        return DEFAULT_TOLERANCE
    try:
        return parse_percent(str(value))
    except ValueError as error:
        raise UsageError(f"{label}: {error}") from error


def _table(value: object, where: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise UsageError(f"{PROJECT_FILE}: {where} is not a table")


def _of_table(name: str, table: Mapping[str, Any], where: str) -> Configuration:
    by_option = {option: argument for argument, option in _KNOWN.items()}
    if unknown := sorted(table.keys() - by_option.keys()):
        raise UsageError(f"{where}: unknown key {unknown[0]!r}.{did_you_mean(unknown[0], by_option)}")
    gpus = table.get("gpu")
    if isinstance(gpus, list):
        gpus = ",".join(map(str, gpus))
    given = {by_option[option]: value for option, value in table.items()}
    try:
        return configuration(name, {**given, "gpu": gpus})
    except UsageError as error:
        raise type(error)(f"{where}: {error.message}") from error


def configuration(name: str, given: Mapping[str, Any]) -> Configuration:
    """Configuration from options of `autofit estimate`.

    Args:
        name: its name in the lock.
        given: values by name with `_` for `-`; None, False and empty tuples count as not given.

    Raises:
        UsageError: an option is missing or wrong, or options contradict each other.
    """
    options = {
        key: value
        for key, value in given.items()
        if value is not None and value is not False and value not in ((), []) and key not in _IGNORED
    }
    batch_size, largest = options.pop(BATCH_SIZE, None), options.pop(LARGEST_BATCH, False)
    gpus = chosen_cards({"gpu": options.pop("gpu", None)}, {}, None)
    if "model" not in options and "script" not in options:
        raise UsageError("no model: name one with model, or a training script with script")
    if batch_size is None and "script" not in options:
        raise UsageError("no batch size: give one with batch-size")
    if batch_size is not None and (type(batch_size) is not int or batch_size < 1):
        raise UsageError(f"batch-size: expected a whole number from 1 on, got {batch_size!r}")
    if type(largest) is not bool:
        raise UsageError(f"largest-batch: expected true or false, got {largest!r}")
    if largest and not gpus:
        raise UsageError("largest-batch needs a card: name one with gpu")
    resolve_one_configuration({**options, "gpu": next(iter(gpus), None)}, WHAT)
    return Configuration(
        name=require_name(name),
        options=options,
        batch_size=batch_size,
        gpus=gpus,
        wants_largest_batch=largest,
    )


def configuration_of(locked: LockedConfiguration) -> Configuration:
    """Configuration that the arguments of a lock describe.

    Raises:
        LockError: they are no arguments of `autofit estimate`.
    """
    try:
        return configuration(locked.name, options_of(locked.arguments))
    except UsageError as error:
        raise LockError(f"the lock's arguments of {locked.name} are wrong: {error.message}") from error


def options_of(arguments: Sequence[str]) -> dict[str, Any]:
    """Values of typed options by name with `_` for `-`, as `Configuration.arguments` lists them.

    Raises:
        UsageError: an option is unknown, or lacks its value.
    """
    by_option = {option: argument for argument, option in _KNOWN.items()}
    given: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        option = word.removeprefix("--")
        if option == word or option not in by_option:
            raise UsageError(f"unknown option {word!r}.{did_you_mean(option, by_option)}")
        argument = by_option[option]
        if _takes_none(option, rest):
            given[argument] = True
        elif not rest:
            raise UsageError(f"{word} lacks its value")
        elif option == "script-arg":
            given[argument] = (*given.get(argument, ()), rest.pop(0))
        else:
            value = rest.pop(0)
            given[argument] = int(value) if argument == BATCH_SIZE and value.isdecimal() else value
    return given


def _takes_none(option: str, rest: Sequence[str]) -> bool:
    """Whether an option is a switch, or stands alone before the next words."""
    known = OPTIONS.get(option)
    if known is None:
        return option == "largest-batch"
    return known.is_switch or (known.may_stand_alone and (not rest or not known.is_value(rest[0])))
