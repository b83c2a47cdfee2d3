"""Formats of sizes, shares, times and rates."""

from __future__ import annotations

from autofit.explain.timing import StepSeconds
from autofit.units import format_bytes

_ABOUT_EQUAL = 1.05  # ratio of two step times below which they count as equal
_UNITS = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def exact(num_bytes: int) -> str:
    """Text of a size in bytes with every digit: `17,179,869,184 bytes`."""
    return f"{num_bytes:,} bytes"


def share(part: int, whole: int) -> str:
    """Text of a part's share in a whole, in percent: `94.1%`."""
    return f"{100 * part / whole:.1f}%"


def gib(num_bytes: int) -> str:
    """Text of a size in GiB, without the unit: `14.12`."""
    return f"{num_bytes / 1024**3:.2f}"


def size_or_nothing(num_bytes: int) -> str:
    """Text of a size, a dash for no bytes."""
    return format_bytes(num_bytes) if num_bytes else "–"


def seconds_in_words(seconds: float) -> str:
    """Step time as text: `1.23 s`, `45.6 ms`."""
    return f"{three_digits(seconds)} s" if seconds >= 1 else f"{three_digits(1000 * seconds)} ms"


def three_digits(number: float) -> str:
    """Number as text with three digits, or with all before the point: `45.6`, `1,130`."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def span_of_seconds(seconds: StepSeconds) -> str:
    """Predicted time with its 95 % interval: `45.6 ms (40.1 to 52.3 ms)`."""
    likely, span = likely_and_span(seconds)
    return f"{likely} ({span})"


def likely_and_span(seconds: StepSeconds) -> tuple[str, str]:
    """Predicted time, and its 95 % interval: `45.6 ms` and `40.1 to 52.3 ms`."""
    unit, factor = ("s", 1) if seconds.likely >= 1 else ("ms", 1000)
    low, likely, high = (three_digits(factor * each) for each in (seconds.low, seconds.likely, seconds.high))
    return f"{likely} {unit}", f"{low} to {high} {unit}"


def span_of_epoch(num_samples: int, samples: float, seconds: StepSeconds) -> str:
    """Time of `num_samples` samples with its interval: `1.2 h (1.1 to 1.4 h)`.

    Args:
        samples: samples of a step.
    """
    low, likely, high = (each * num_samples / samples for each in (seconds.low, seconds.likely, seconds.high))
    unit, factor = _unit_of(likely)
    least, usual, most = (three_digits(each / factor) for each in (low, likely, high))
    return f"{usual} {unit} ({least} to {most} {unit})"


def duration(seconds: float) -> str:
    """Duration in a suitable unit, as text: `1.2 h`."""
    unit, factor = _unit_of(seconds)
    return f"{three_digits(seconds / factor)} {unit}"


def _unit_of(seconds: float) -> tuple[str, float]:
    return next((each for each in _UNITS if seconds >= each[1]), _UNITS[-1])


def slower_in_words(relative_time: float) -> str:
    """Phrase for how much slower a sample is than in the fastest setting, such as `about 1.4 × slower`."""
    return "the fastest" if relative_time < _ABOUT_EQUAL else f"about {relative_time:.1f} × slower"


def dearer_in_words(relative_price: float) -> str:
    """Phrase for how much more a sample costs than on the cheapest card."""
    return "the least" if relative_price < _ABOUT_EQUAL else f"about {relative_price:.1f} × as much"


def change_in_words(relative_time: float) -> str:
    """Phrase for a step's time relative to another's: `1.4 × slower`, or `as fast` if about equal."""
    if 1 / _ABOUT_EQUAL < relative_time < _ABOUT_EQUAL:
        return "as fast"
    return f"{1 / relative_time:.1f} × faster" if relative_time < 1 else f"{relative_time:.1f} × slower"


def rate(samples_per_second: float) -> str:
    """Samples a second as text, whole from 100 on, else with one digit after the decimal point."""
    return f"{samples_per_second:,.{0 if samples_per_second >= 100 else 1}f}"
