"""What is known of one knob, whoever asks: the command line, a search, a text, a trial."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# A value that a user typed or a file holds → the value as `Knobs` has it; raises `ValueError`, saying what
# was expected.
Read = Callable[[Any], Any]
# A value and the card's compute capability (80 for sm_80; None on the CPU and on AMD's cards) → its place in
# the order of costs; None where that is not known.
CostOf = Callable[[Any, int | None], float | None]
# A value and a kind of device (`cuda`, `cpu`); raises `UnsupportedError` where the value means nothing there.
Require = Callable[[Any, str], None]


class Part(StrEnum):
    """What a step's memory goes to, as far as knobs make parts of it smaller.

    `TEMPORARIES` are those of the optimizer's step. Frozen weights have neither gradients nor states.
    """

    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    STATES = "states"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"


# About what share of a part is left with a value, 1 where nothing is said. It decides what is tried first,
# never what is answered.
Leaves = Callable[[Any], Mapping[Part, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a value usually costs in time: an order among the values of one knob, not seconds.

    Attributes:
        rank: knobs of a lower rank are compared first.
        of: the order, by value and card.
        names_fast_kernels: whether a setting without a known cost is the last to be chosen.
    """

    rank: int
    of: CostOf
    names_fast_kernels: bool = False


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One thing that may be varied beside the batch size.

    Each has a file of its own. A field of that name in `Knobs` holds its value; everything else that
    autofit has to know of it stands here.

    Attributes:
        name: the field of `Knobs`; the option has `-` for `_`.
        default: what PyTorch does of itself.
        read: checks and converts a value.
        from_user: makes a value of what a user may write in its place, such as the path of a file, before it
            is read; records have values alone.
        help: of the option, one or two sentences.
        values: what can be typed, as help and messages list it.
        aliases: other names of its option.
        metavar: the same in the help of the option; None for the values.
        examples: values that the shell completes; None for `values`.
        is_searchable: whether `--search` may choose it.
        is_switch: whether its option takes no value.
        of_training: whether it means nothing without gradients.
        choice: knobs of one choice say the same in other ways, so that only one of them is given.
        levers: values that `--what-if` tries.
        degrees: how much further than the others those of them go that do: 4 bits than 8.
        leaves: about what is left of a step's parts, by value; None where only a trace tells.
        never_saving: those of them that take at least as much memory as any other value.
        words, phrase: what values are called in sentences: by value, else the phrase with the value in it.
        script_lines: Python lines for the head of a training script, by value; None where the lines are part
            of the loop, which several knobs make together.
        model_lines: likewise, for after the model was made, by value and the `Knobs` that it is one of.
        cost: which values are usually faster; None where that depends on the model.
        require: refuses values on devices where they mean nothing; None where all values go with all.
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
        """Its name on the command line and in files, without the dashes in front."""
        return self.name.replace("_", "-")

    def in_words(self, value: Any) -> str:
        """A value as a reader knows it: `amp-bf16`, `checkpointing blocks`."""
        return self.words.get(value) or self.phrase.format(value)


def one_of(values: tuple[str, ...]) -> Read:
    """Reads one of these words."""

    def read(value: Any) -> str:
        if value not in values:
            raise ValueError(f"{value!r} is not one of {', '.join(values)}")
        return str(value)

    return read


def whole_number(*, minimum: int = 1, maximum: float = math.inf) -> Read:
    """Reads a whole number between these."""

    def read(value: Any) -> int:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_digits = isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal()
        if not (is_number or is_digits) or not minimum <= int(value) <= maximum:
            raise ValueError(f"{value!r} is not a whole number {_span(minimum, maximum)}")
        return int(value)

    return read


def positive_number(value: Any) -> float:
    """Reads a number above 0."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not 0 < found < math.inf:
        raise ValueError(f"{value!r} is not a number above 0")
    return found


def or_none(read: Read) -> Read:
    """Reads the same, and lets None be."""
    return lambda value: None if value is None else read(value)


def switch(value: Any) -> bool:
    """Reads yes or no."""
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, bool):
        return value
    if not isinstance(value, str) or value.strip().lower() not in words:
        raise ValueError(f"{value!r} is neither true nor false")
    return words[value.strip().lower()]


def number_after(
    name: str, digits: str, unit: str, *, example: int, minimum: int = 1, maximum: float = math.inf
) -> int:
    """Reads the number of a value such as `every:4`.

    Raises:
        ValueError: it is missing, or not between these.
    """
    if not (digits.isascii() and digits.isdecimal() and minimum <= int(digits) <= maximum):
        kind = name.partition(":")[0]
        span = _span(minimum, maximum)
        raise ValueError(f"{name} needs a number of {unit} {span}, as in {kind}:{example}")
    return int(digits)


def _span(minimum: int, maximum: float) -> str:
    return f"of {minimum} or more" if maximum == math.inf else f"from {minimum} to {maximum}"
