"""Formats of sizes, shares, times and rates."""

from __future__ import annotations

from autofit.explain.timing import StepSeconds
from autofit.units import format_bytes

_ABOUT_EQUAL = 1.05  # ratio of two step times below which they count as equal
_UNITS = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def exact(num_bytes: int) -> str:
    """Text of a size with every digit: `17,179,869,184 bytes`."""
    return f"{num_bytes:,} bytes"


def share(part: int, whole: int) -> str:
    """Text of the share of `part` in `whole`, in percent: `94.1%`."""
    return f"{100 * part / whole:.1f}%"


def gib(num_bytes: int) -> str:
    """Text of a size in GiB, without the unit: `14.12`."""
    return f"{num_bytes / 1024**3:.2f}"


def size_or_nothing(num_bytes: int) -> str:
    """Text of a size, such as `14.12 GiB`; a dash for 0 bytes."""
    return format_bytes(num_bytes) if num_bytes else "–"


def seconds_in_words(seconds: float) -> str:
    """Step time as text: `1.23 s`, `45.6 ms`."""
    return f"{three_digits(seconds)} s" if seconds >= 1 else f"{three_digits(1000 * seconds)} ms"


def three_digits(number: float) -> str:
    """Text of a number, rounded to three significant digits below 100 and to a whole number from 100 on.

    Examples are `45.6` and `1,130`.
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def span_of_seconds(seconds: StepSeconds) -> str:
    """Text of a predicted step time with its 95 % interval: `45.6 ms (40.1 to 52.3 ms)`."""
    likely, span = likely_and_span(seconds)
    return f"{likely} ({span})"


def likely_and_span(seconds: StepSeconds) -> tuple[str, str]:
    """Texts of a predicted step time and of its 95 % interval: `45.6 ms` and `40.1 to 52.3 ms`."""
    unit, factor = ("s", 1) if seconds.likely >= 1 else ("ms", 1000)
    low, likely, high = (three_digits(factor * each) for each in (seconds.low, seconds.likely, seconds.high))
    return f"{likely} {unit}", f"{low} to {high} {unit}"


def span_of_epoch(num_samples: int, samples: float, seconds: StepSeconds) -> str:
    """Text of the time that an epoch takes, with its 95 % interval: `1.2 h (1.1 to 1.4 h)`.

    Args:
        num_samples: samples of the epoch.
        samples: samples of one step.
        seconds: predicted time of one step.
    """
    low, likely, high = (each * num_samples / samples for each in (seconds.low, seconds.likely, seconds.high))
    unit, factor = _unit_of(likely)
    least, usual, most = (three_digits(each / factor) for each in (low, likely, high))
    return f"{usual} {unit} ({least} to {most} {unit})"


def duration(seconds: float) -> str:
    """Text of a duration in days, hours, minutes or seconds: `1.2 h`."""
    unit, factor = _unit_of(seconds)
    return f"{three_digits(seconds / factor)} {unit}"


def _unit_of(seconds: float) -> tuple[str, float]:
    return next((each for each in _UNITS if seconds >= each[1]), _UNITS[-1])


def slower_in_words(relative_time: float) -> str:
    """Phrase for a time relative to the fastest: `about 1.4 × slower`, or `the fastest` below 1.05.

    Args:
        relative_time: time of a step or a sample, divided by the shortest such time.
    """
    return "the fastest" if relative_time < _ABOUT_EQUAL else f"about {relative_time:.1f} × slower"


def dearer_in_words(relative_price: float) -> str:
    """Phrase for a price relative to the cheapest: `about 1.4 × as much`, or `the least` below 1.05.

    Args:
        relative_price: price of training on a sample, divided by the price on the cheapest card.
    """
    return "the least" if relative_price < _ABOUT_EQUAL else f"about {relative_price:.1f} × as much"


def change_in_words(relative_time: float) -> str:
    """Phrase for a change of a step's time: `1.4 × slower`, `1.2 × faster`, or `as fast` within 5 %.

    Args:
        relative_time: time of a step after the change, divided by the time before.
    """
    if 1 / _ABOUT_EQUAL < relative_time < _ABOUT_EQUAL:
        return "as fast"
    return f"{1 / relative_time:.1f} × faster" if relative_time < 1 else f"{relative_time:.1f} × slower"


def rate(samples_per_second: float) -> str:
    """Text of a rate in samples a second: whole from 100 on, else with one decimal."""
    return f"{samples_per_second:,.{0 if samples_per_second >= 100 else 1}f}"
