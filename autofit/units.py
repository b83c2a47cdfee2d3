"""Parses and formats sizes and percentages as people write them.

Sizes: `K M G T`, `Ki Mi Gi Ti` and `KiB MiB GiB TiB` are powers of 1024, as GPU memory is
counted; `KB MB GB TB` are powers of 1000, as it is advertised; `B` or no unit is bytes.
"""

from __future__ import annotations

import re
from decimal import Decimal

_PREFIXES = "KMGT"
_UNIT_BYTES: dict[str, int] = {
    "": 1,
    "B": 1,
    **{f"{prefix}{end}": 1024**power for power, prefix in enumerate(_PREFIXES, 1) for end in ("", "I", "IB")},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate(_PREFIXES, 1)},
}
_SIZE = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*")
_PERCENTAGE = re.compile(r"\s*(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<percent>%?)\s*")


def parse_bytes(text: str) -> int:
    """Size in bytes, parsed from a text such as `16G`, `15.5 GiB`, `16GB` or `17179869184`.

    Case does not matter, and neither do spaces around the number and the unit. A fraction of a byte is
    dropped, so that no size is larger than the text says.

    Returns:
        Bytes, at least 1.

    Raises:
        ValueError: the text is anything else, such as one without a number, with a sign, a thousands
            separator, an exponent, an unknown unit, or a fraction of bytes.
    """
    match = _SIZE.fullmatch(text)
    unit_bytes = _UNIT_BYTES.get(match["unit"].upper()) if match else None
    if match is None or unit_bytes is None or (unit_bytes == 1 and "." in match["number"]):
        raise ValueError(
            f"{text!r} is not a size: write a number and a unit, such as 16G (16 × 1024³ bytes), "
            "16GB (16 × 1000³ bytes), 15.5GiB or 17179869184"
        )
    number, _, fraction = match["number"].partition(".")
    num_bytes: int = int(number + fraction) * unit_bytes // 10 ** len(fraction)
    if num_bytes == 0:
        raise ValueError(f"{text!r} is less than one byte: write a size such as 16G or 1500M")
    return num_bytes


def format_bytes(num_bytes: int) -> str:
    """Text of a size in binary units with two decimals: `15.23 GiB`; whole bytes below 1 KiB.

    `parse_bytes` reads the text back; the result differs from the size by at most the rounding.
    """
    if num_bytes < 0:
        return f"-{format_bytes(-num_bytes)}"
    if num_bytes < 1024:
        return f"{num_bytes} B"
    for power, prefix in enumerate(_PREFIXES, 1):
        # Rounds integers, as a float loses bytes above 8 PiB, and 1023.999 MiB shall read 1.00 GiB.
        hundredths = (num_bytes * 100 + 1024**power // 2) // 1024**power
        if hundredths < 1024 * 100 or prefix == _PREFIXES[-1]:
            break
    return f"{hundredths // 100}.{hundredths % 100:02} {prefix}iB"


def parse_percent(text: str) -> Decimal:
    """Exact share of a whole, parsed from a text such as `3%` or `0.03`.

    Returns:
        The share, from 0 up to but not including 1: `Decimal("0.03")`.

    Raises:
        ValueError: the text is anything else; a number of 1 or more without `%` is ambiguous.
    """
    match = _PERCENTAGE.fullmatch(text)
    share = None
    if match:
        share = Decimal(match["number"]).scaleb(-2) if match["percent"] else Decimal(match["number"])
    if share is None or share >= 1:
        raise ValueError(f"{text!r} is not a share below 100%: write it as 3% or 0.03")
    return share


def size_or_dash(num_bytes: int | None) -> str:
    """Text of a size, such as `15.23 GiB`; a dash for None."""
    return "–" if num_bytes is None else format_bytes(num_bytes)
