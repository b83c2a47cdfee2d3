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
_OPTIONS = "options"  # key of a field's metadata; its options, by the path of the attribute that they set


class Topic(Enum):
    """Subject of command-line options: the help lists options of one topic under a heading.

    Attributes:
        group: heading in the short help (`--help`), which several topics may share.
        part: name of the topic within its group; the full help (`--help-all`) adds it to the heading.
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
    """Option of `autofit tune`: how its value is read, its help, and which commands take it.

    An option declares a field of the settings: `task: str | None = Option(read, …).with_default(None)`.

    Attributes:
        read: turns an option's text or a TOML value into the field's value; raises `ValueError` with the
            expected form.
        help: purpose of the option, in one or two sentences.
        topic: subject under whose heading the help lists the option.
        name: name as it is typed, without the dashes in front; by default the field's name.
        field: field of `TuneSettings` that holds the value; `knobs.NAME` for a field of its `knobs`.
        is_common: whether the short help shows the option too.
        default: value without the option, as the help shows it; by default the field's default.
        metavar: placeholder of the value in the help; None for the choices.
        choices: all values, or examples of them, which the shell completes.
        is_switch: whether it takes no value on the command line.
        may_stand_alone: whether it may be given without a value on the command line, which is then `true`.
        choice: name of a group of options that exclude each other; if the command line gives one of them, the
            others are ignored in the environment and in settings files.
        aliases: further names of the option, without dashes in front.
        of_scripts: whether the option decides how a training script is called.
        of_cluster: whether the option only has a meaning for a Ray cluster.
        of_search: whether only a search has the option, not commands about one configuration.
        of_job: whether a job (an `autofit tune` on a cluster) gets the value that was given when it was
            submitted; else the cluster decides it.
        decides: whether the answer depends on the option; else it is about where or how long to search.
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
    may_stand_alone: bool = False
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

    def is_value(self, text: str) -> bool:
        """Whether a text is a value of the option, or is meant as one, as it holds `=`."""
        if "=" in text:
            return True
        try:
            self.read(text)
        except ValueError:
            return False
        return True

    def with_default(self, default: _T) -> _T:
        """Declaration of a dataclass field that this option sets, and whose default is `default`."""
        shown = replace(self, default=self.default or _shown(default))
        return declared(default=default, metadata={_OPTIONS: {"": shown}})

    def required(self) -> Any:
        """Declaration of a dataclass field that this option sets, and that has no default."""
        return declared(metadata={_OPTIONS: {"": self}})


def parts(kind: Callable[[], _T], options: Mapping[str, Option]) -> _T:
    """Dataclass field that holds another dataclass, some of whose fields have an option each.

    Args:
        kind: makes the default value of the field; usually the class of the inner dataclass.
        options: options by the name of the inner field that each sets.
    """
    at = {f".{name}": option for name, option in options.items()}
    return declared(default_factory=kind, metadata={_OPTIONS: at})


def options_of(settings: type[Any]) -> Iterator[Option]:
    """Yields the options with which the fields of a dataclass are declared, in their order.

    Args:
        settings: the dataclass.
    """
    for each in fields(settings):
        for path, option in each.metadata.get(_OPTIONS, {}).items():
            own = path.removeprefix(".") or each.name
            yield replace(option, field=each.name + path, name=option.name or own.replace("_", "-"))


def _shown(default: object) -> str:
    """Text with which the help shows a default value; empty for None, False, 0 and empty values."""
    if isinstance(default, Decimal):
        return f"{default:.0%}"
    return f"{default:g}" if isinstance(default, float) else str(default or "")


def knob_option(knob: Knob) -> Option:
    """Option of `autofit tune` that sets a knob, made from the knob's definition (values, help, default)."""
    default = knob.default
    return Option(
        values.knob_value(knob),
        knob.help,
        name=knob.option,
        topic=Topic.SETTINGS,
        is_common=knob.is_common,
        default="" if default is None or default is False else str(default).lower(),
        metavar=knob.metavar or "|".join(knob.values),
        choices=knob.values if knob.examples is None else knob.examples,
        is_switch=knob.is_switch,
        may_stand_alone=knob.may_stand_alone,
        choice=knob.choice,
        aliases=knob.aliases,
    )
