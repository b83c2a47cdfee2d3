"""Defines an option of `autofit tune`: its name, the reader of its value, its help and properties."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from autofit.settings import values
from autofit_workers.spec.knobs import Knob
from autofit_workers.spec.knobs.knob import Read

_KNOBS, SETUP = "knobs.", "setup."


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Option of `autofit tune`, with its reader, help and properties.

    Attributes:
        name: the name as it is typed, without the dashes in front.
        field: the field of `TuneSettings` that holds it; `knobs.NAME` and `setup.NAME` are fields of those.
        read: turns an option's text or a TOML value into the field's value; raises `ValueError`, saying
            what was expected.
        help: the purpose of the option, in one or two sentences.
        topic: the heading of the help that the option stands under.
        is_common: whether the short help shows the option too.
        default: what holds without it, as the help shows it; empty where the sentence says so.
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

    name: str
    field: str
    read: Read
    help: str
    topic: Topic
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
    def is_knob(self) -> bool:
        return self.field.startswith(_KNOBS)

    @property
    def help_text(self) -> str:
        """Help text of the option, with its default value."""
        return f"{self.help}  [default: {self.default}]" if self.default else self.help


def knob_option(knob: Knob) -> Option:
    """Option of `autofit tune` for a knob, built from the knob's definition."""
    default = knob.default
    return Option(
        name=knob.option,
        field=_KNOBS + knob.name,
        read=values.knob_value(knob),
        help=knob.help,
        topic=Topic.SETTINGS,
        is_common=knob.is_common,
        default="" if default is None or knob.is_switch else str(default).lower(),
        metavar=knob.metavar or "|".join(knob.values),
        choices=knob.values if knob.examples is None else knob.examples,
        is_switch=knob.is_switch,
        choice=knob.choice,
        aliases=knob.aliases,
    )
