"""Properties of a knob, for the command line, searches, texts and trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit_workers.spec.pythons import StrEnum

# A value that a user typed or a file holds → the value as `Knobs` has it; raises `ValueError`, saying what
# was expected.
Read = Callable[[Any], Any]
# A value and the card's compute capability (80 for sm_80; None on the CPU and on AMD's cards) → the value's
# place in the order of costs; None if that is unknown.
CostOf = Callable[[Any, int | None], float | None]
# A value and a kind of device (`cuda`, `cpu`); raises `UnsupportedError` where the value has no effect.
Require = Callable[[Any, str], None]


class Part(StrEnum):
    """Part of a step's memory that training options can make smaller.

    `TEMPORARIES` are those of the optimizer's step. Frozen weights have neither gradients nor states.
    """

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    STATES = "states"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"


# A value → rough share of each part of memory that is left with it; 1 for parts that are not in the mapping.
# The shares only decide which knob settings are tried first.
Leaves = Callable[[Any], Mapping[Part, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Rough order of a training option's values by the step time that they usually cost.

    Attributes:
        rank: options of a lower rank are compared first.
        of: returns a value's place in the order, a number without a unit, or None if it is unknown; takes the
            value and the card's compute capability (None on the CPU and on AMD's cards).
        names_fast_kernels: whether a value of unknown place is chosen last on a card.
    """

    rank: int
    of: CostOf
    names_fast_kernels: bool = False


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Knob: training option that may be varied besides the batch size, such as the precision.

    Each knob has a file of its own, with one `Knob` in it. `Knobs` has a field for each knob, which holds a
    value of it. A knob's option is its form on the command line.

    Attributes:
        name: name of the field of `Knobs`; the option has `-` for `_`.
        default: value for PyTorch's own behaviour.
        read: checks and converts a value; raises `ValueError` for a wrong one.
        from_user: turns what a user may write in place of a value, such as the path of a file, into a value,
            before it is read; records hold values only.
        help: help of its option, one or two sentences.
        values: texts that can be typed, as help and messages list them.
        aliases: other names of its option.
        metavar: placeholder for `values` in the help of the option; None for the values themselves.
        examples: values that the shell completes; None for `values`.
        is_searchable: whether `--search` may choose it.
        is_switch: whether its option takes no value.
        may_stand_alone: whether its option may be given without a value, which is then `true`.
        is_common: whether the short help shows its option.
        of_training: whether it has no effect without gradients.
        choice: name that alternative knobs share, of which a user may give only one.
        levers: values that `--what-if` tries to save memory.
        degrees: for those among `levers` that differ only in how much they save, such as 8 and 4 bits, a
            number that grows with it.
        leaves: returns the rough share of each part of a step's memory that is left with a value; None if
            only a trace can tell.
        never_saving: those among `levers` that take at least as much memory as any other value.
        words, phrase: names of values in sentences: `words` by value, else `phrase` with the value in it.
        script_lines: returns Python lines for the head of a training script that set a value; None where the
            lines are part of the loop, which several knobs make together.
        model_lines: returns Python lines for after the model is made, from a value and the whole `Knobs`;
            None for none.
        cost: usual order of the values by step time; None if that depends on the model.
        require: raises an error for a value on a device where it has no effect; None if all devices take all
            values.
    """

    name: str
    default: Any
    read: Read
    help: str
    from_user: Read = _as_it_is
    values: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    metavar: str | None = None
    examples: tuple[str, ...] | None = None
    is_searchable: bool = False
    is_switch: bool = False
    may_stand_alone: bool = False
    is_common: bool = False
    of_training: bool = False
    choice: str | None = None
    levers: tuple[Any, ...] = ()
    never_saving: tuple[Any, ...] = ()
    degrees: Mapping[Any, int] = field(default_factory=dict)
    leaves: Leaves | None = None
    words: Mapping[Any, str] = field(default_factory=dict)
    phrase: str = "{}"
    script_lines: Callable[[Any], tuple[str, ...]] | None = None
    model_lines: Callable[[Any, Any], tuple[str, ...]] | None = None
    cost: Cost | None = None
    require: Require | None = None

    @property
    def option(self) -> str:
        """Name of the knob's option on the command line and in files, without leading dashes."""
        return self.name.replace("_", "-")

    def in_words(self, value: Any) -> str:
        """Words for a value of the knob inside a sentence, such as `checkpointing blocks`."""
        return self.words.get(value) or self.phrase.format(value)


def one_of(values: tuple[str, ...]) -> Read:
    """Returns a function that returns a value if it is one of `values`, and else raises `ValueError`."""

    def read(value: Any) -> str:
        if value not in values:
            raise ValueError(f"{value!r} is not one of {', '.join(values)}")
        return str(value)

    return read


def whole_number(*, minimum: int = 1, maximum: float = math.inf) -> Read:
    """Returns a function that reads a whole number from `minimum` to `maximum`, from an int or from digits.

    The function raises `ValueError` for anything else.
    """

    def read(value: Any) -> int:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_digits = isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal()
        if not (is_number or is_digits) or not minimum <= int(value) <= maximum:
            raise ValueError(f"{value!r} is not a whole number {_span(minimum, maximum)}")
        return int(value)

    return read


def positive_number(value: Any) -> float:
    """Reads a finite number above 0; raises `ValueError` for anything else."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not 0 < found < math.inf:
        raise ValueError(f"{value!r} is not a number above 0")
    return found


def or_none(read: Read) -> Read:
    """Returns a function that returns None for None, and reads every other value with `read`."""
    return lambda value: None if value is None else read(value)


def switch(value: Any) -> bool:
    """Reads a boolean: True or False, or a word such as `true`, `no` or `1`; else raises `ValueError`."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.strip().lower() not in words:
        raise ValueError(f"{value!r} is neither true nor false")
    return words[value.strip().lower()]


def number_after(
    name: str, digits: str, unit: str, *, example: int, minimum: int = 1, maximum: float = math.inf
) -> int:
    """Reads the number of a value such as `every:4` from the digits after the colon.

    Args:
        name: the whole value, for messages.
        digits: the text after the colon.
        unit: plural noun for what the number counts, for messages.
        example: a number for messages.
        minimum, maximum: smallest and largest number.

    Raises:
        ValueError: the number is missing, or not from `minimum` to `maximum`.
    """
    if not (digits.isascii() and digits.isdecimal() and minimum <= int(digits) <= maximum):
        kind = name.partition(":")[0]
        span = _span(minimum, maximum)
        raise ValueError(f"{name} needs a number of {unit} {span}, as in {kind}:{example}")
    return int(digits)


def _span(minimum: int, maximum: float) -> str:
    return f"of {minimum} or more" if maximum == math.inf else f"from {minimum} to {maximum}"
