"""Properties of a knob, for the command line, searches, texts and trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# A value that a user typed or a file holds → the value as `Knobs` has it; raises `ValueError`, saying what
# was expected.
Read = Callable[[Any], Any]
# A value and the card's compute capability (80 for sm_80; None on the CPU and on AMD's cards) → the value's
# place in the order of costs; None if that is unknown.
CostOf = Callable[[Any, int | None], float | None]
# A value and a kind of device (`cuda`, `cpu`); raises `UnsupportedError` where the value has no effect.
Require = Callable[[Any, str], None]


class Part(StrEnum):
    """Part of a step's memory that knobs can make smaller.

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
    """Order of a knob's values by the step time that they usually cost, as numbers without a unit.

    Attributes:
        rank: knobs of a lower rank are compared first.
        of: place of a value in the order, by value and card.
        names_fast_kernels: whether a setting whose cost is unknown for this knob is chosen last.
    """

    rank: int
    of: CostOf
    names_fast_kernels: bool = False


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Knob: training option that may be varied beside the batch size, such as the precision.

    Each knob has a file of its own, with one `Knob` in it. The field of its name in `Knobs` holds a value.

    Attributes:
        name: the field of `Knobs`; the option has `-` for `_`.
        default: value for PyTorch's own behaviour.
        read: checks and converts a value.
        from_user: turns what a user may write in place of a value, such as the path of a file, into a value,
            before it is read; records hold values only.
        help: help of its option, one or two sentences.
        values: texts that can be typed, as help and messages list them.
        aliases: other names of its option.
        metavar: placeholder for `values` in the help of the option; None for the values themselves.
        examples: values that the shell completes; None for `values`.
        is_searchable: whether `--search` may choose it.
        is_switch: whether its option takes no value.
        is_common: whether the short help shows its option.
        of_training: whether it has no effect without gradients.
        choice: name that alternative knobs share, of which a user may give only one.
        levers: values that `--what-if` tries to save memory.
        degrees: for levers that differ only in how far they go, such as 8 and 4 bits, a number that orders
            them.
        leaves: rough share of a step's parts that is left, by value; None if only a trace can tell.
        never_saving: levers that take at least as much memory as any other value.
        words, phrase: names of values in sentences: by value, else the phrase with the value in it.
        script_lines: Python lines for the head of a training script, by value; None where the lines are part
            of the loop, which several knobs make together.
        model_lines: Python lines for after the model is made, by value and the `Knobs` that it is part of.
        cost: usual order of the values by time; None if that depends on the model.
        require: refuses values on devices where they have no effect; None if all devices take all values.
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
        """Text for a value of the knob in a sentence: `amp-bf16`, `checkpointing blocks`."""
        return self.words.get(value) or self.phrase.format(value)


def one_of(values: tuple[str, ...]) -> Read:
    """Function that returns a value unchanged if it is one of `values`, and else raises `ValueError`."""

    def read(value: Any) -> str:
        if value not in values:
            raise ValueError(f"{value!r} is not one of {', '.join(values)}")
        return str(value)

    return read


def whole_number(*, minimum: int = 1, maximum: float = math.inf) -> Read:
    """Function that reads a whole number from `minimum` to `maximum`, given as an int or in digits."""

    def read(value: Any) -> int:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_digits = isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal()
        if not (is_number or is_digits) or not minimum <= int(value) <= maximum:
            raise ValueError(f"{value!r} is not a whole number {_span(minimum, maximum)}")
        return int(value)

    return read


def positive_number(value: Any) -> float:
    """Reads a finite number above 0."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not 0 < found < math.inf:
        raise ValueError(f"{value!r} is not a number above 0")
    return found


def or_none(read: Read) -> Read:
    """Function that returns None for None, and reads every other value with `read`."""
    return lambda value: None if value is None else read(value)


def switch(value: Any) -> bool:
    """Reads a boolean: True or False, or a word such as `true`, `no` or `1`."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.strip().lower() not in words:
        raise ValueError(f"{value!r} is neither true nor false")
    return words[value.strip().lower()]


def number_after(
    name: str, digits: str, unit: str, *, example: int, minimum: int = 1, maximum: float = math.inf
) -> int:
    """Number of a value such as `every:4`, read from the digits after the colon.

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
