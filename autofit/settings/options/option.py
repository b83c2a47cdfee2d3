"""Option of `autofit tune`, as the declaration of a field: reader of its value, help and properties."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from dataclasses import field as declared
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar

from autofit.settings import values
from autofit_workers.spec.knobs import Knob
from autofit_workers.spec.knobs.knob import Read

_T = TypeVar("_T")
_OPTIONS = "options"  # in a field's metadata: its options, by the path from it to what they set


class Topic(Enum):
    """Subject of options that the help lists together: one of four groups, and a part of that group.

    Attributes:
        group: the heading of the short help.
        part: what tells the topic from others of its group, in the help with all options.
    """

    MODEL = "What", "a model and its batch"
    SCRIPT = "What", "a training script"
    LIMITS = "What", "permissions while it is predicted"
    CARD = "Where", "the card"
    TRIALS = "Where", "studies and measured trials"
    JOBS = "Where", "the job and its cluster"
    SETTINGS = "Which settings", ""
    SEARCH = "How to answer", "the search"
    VIEW = "How to answer", "the view"
    OUTPUT = "How to answer", "the output"

    def __init__(self, group: str, part: str) -> None:
        self.group, self.part = group, part


@dataclass(frozen=True, slots=True)
class Option:
    """Option of `autofit tune`, with its reader, help and properties.

    It declares a field of the settings: `task: str | None = Option(read, help, …).with_default(None)`.

    Attributes:
        read: turns an option's text or a TOML value into the field's value; raises `ValueError`, saying
            what was expected.
        help: the purpose of the option, in one or two sentences.
        name: the name as it is typed, without the dashes in front; by default that of the field.
        field: the field of `TuneSettings` that holds it; `knobs.NAME` and `setup.NAME` are fields of those.
        topic: the heading of the help that the option stands under.
        is_common: whether the short help shows the option too.
        default: what holds without it, as the help shows it; by default that of the field.
        metavar: what stands for the value in the help; None for the choices.
        choices: all values, or examples of them, which the shell completes.
        is_switch: whether it takes no value on the command line.
        choice: options of one choice exclude each other: one given in a higher place puts the others aside.
        of_scripts: whether the option says how a script is called.
        of_cluster: whether the option means something to a Ray cluster alone.
        of_search: whether a question about one configuration has no use for the option.
        of_job: whether a job takes the option along; else the cluster decides it.
        decides: whether the answer depends on the option; else it says where and for how long to look.
    """

    read: Read
    help: str
    _: KW_ONLY
    topic: Topic
    name: str = ""
    field: str = ""
    is_common: bool = False
    default: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    is_switch: bool = False
    choice: str | None = None
    aliases: tuple[str, ...] = ()
    of_scripts: bool = False
    of_cluster: bool = False
    of_search: bool = False
    of_job: bool = True
    decides: bool = True

    @property
    def argument(self) -> str:
        """Name of the option as a keyword argument, with `_` for `-`."""
        return self.name.replace("-", "_")

    @property
    def help_text(self) -> str:
        """Help text of the option, with its default value."""
        return f"{self.help}  [default: {self.default}]" if self.default else self.help

    def with_default(self, default: _T) -> _T:
        """Field of a dataclass that the option sets, with the value that holds without the option."""
        shown = replace(self, default=self.default or _shown(default))
        return declared(default=default, metadata={_OPTIONS: {"": shown}})

    def required(self) -> Any:
        """Field of a dataclass that the option sets, which has no default."""
        return declared(metadata={_OPTIONS: {"": self}})


def parts(kind: Callable[[], _T], options: Mapping[str, Option]) -> _T:
    """Field of a dataclass that is a dataclass itself, `kind`, with options for fields of that by name."""
    at = {f".{name}": option for name, option in options.items()}
    return declared(default_factory=kind, metadata={_OPTIONS: at})


def options_of(settings: type[Any]) -> Iterator[Option]:
    """Options that the fields of a dataclass are declared with, in their order."""
    for each in fields(settings):
        for path, option in each.metadata.get(_OPTIONS, {}).items():
            own = path.removeprefix(".") or each.name
            yield replace(option, field=each.name + path, name=option.name or own.replace("_", "-"))


def _shown(default: object) -> str:
    """Default as the help names it; empty for None, False, 0 and nothing."""
    if isinstance(default, Decimal):
        return f"{default:.0%}"
    return f"{default:g}" if isinstance(default, float) else str(default or "")


def knob_option(knob: Knob) -> Option:
    """Option of `autofit tune` for a knob, built from the knob's definition."""
    default = knob.default
    return Option(
        values.knob_value(knob),
        knob.help,
        name=knob.option,
        topic=Topic.SETTINGS,
        is_common=knob.is_common,
        default="" if default is None or knob.is_switch else str(default).lower(),
        metavar=knob.metavar or "|".join(knob.values),
        choices=knob.values if knob.examples is None else knob.examples,
        is_switch=knob.is_switch,
        choice=knob.choice,
        aliases=knob.aliases,
    )
