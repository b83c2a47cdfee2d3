from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.units import format_bytes, parse_bytes, parse_percent

BINARY = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
DECIMAL = {"KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
UNITS = {
    "": 1,
    "B": 1,
    **BINARY,
    **{f"{prefix}i": size for prefix, size in BINARY.items()},
    **{f"{prefix}iB": size for prefix, size in BINARY.items()},
    **DECIMAL,
}
sizes = st.integers(min_value=1, max_value=2**60)
units = st.sampled_from(sorted(UNITS))


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("16G", 17179869184),
        ("16GiB", 17179869184),
        ("16GB", 16_000_000_000),
        ("1500M", 1_572_864_000),
        ("17179869184", 17179869184),
        ("512B", 512),
        (" 15.5 GiB ", 16642998272),
        ("16g", 17179869184),
        ("16Gi", 17179869184),
        ("2t", 2 * 1024**4),
        ("0.5K", 512),
    ],
)
def test_a_size_is_read_as_documented(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "text",
    [
        *("16Q", "G", "16GiBs", "16bit"),  # no unit of ours, or only a unit
        *("-1", "-1G", "+1G"),  # signs
        *("16,000MB", "16_000", "16 G B", "1G 2M"),  # something in between
        *("1e9", "0x10", "1.G", ".5G", "1.2.3G", "\u0663G"),  # other ways to write a number
        *("1.5", "1.5B"),  # half a byte
        *("nan", "inf", "", " "),  # no number
    ],
)
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size.*16G.*16GB.*17179869184"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "0G", "0.0T", "0.0001K"])
def test_less_than_a_byte_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"less than one byte: write a size such as 16G"):
        parse_bytes(text)


@given(sizes, units, st.sampled_from(["", " ", "   "]))
def test_a_whole_number_of_units_is_exact_in_any_case_and_spacing(count: int, unit: str, space: str) -> None:
    expected = count * UNITS[unit]
    for spelling in (unit, unit.lower(), unit.upper()):
        assert parse_bytes(f"{space}{count}{space}{spelling}{space}") == expected


@given(st.decimals(min_value=0, max_value=10**6, places=6), st.sampled_from(sorted(BINARY | DECIMAL)))
def test_a_decimal_is_floored_to_whole_bytes(count: Decimal, unit: str) -> None:
    exact = count * (BINARY | DECIMAL)[unit]
    if exact < 1:
        with pytest.raises(ValueError, match="less than one byte"):
            parse_bytes(f"{count:f}{unit}")
    else:
        assert parse_bytes(f"{count:f}{unit}") == int(exact)


@given(sizes, sizes, units)
def test_a_larger_number_of_a_unit_is_a_larger_size(a: int, b: int, unit: str) -> None:
    assert (a < b) == (parse_bytes(f"{a}{unit}") < parse_bytes(f"{b}{unit}"))


@given(st.text(max_size=12))
def test_any_text_is_a_size_of_a_byte_or_more_or_a_value_error(text: str) -> None:
    try:
        assert parse_bytes(text) >= 1
    except ValueError as error:
        assert "write a" in str(error)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (16357785354, "15.23 GiB"),
        (17179869184, "16.00 GiB"),
        (1024**3 - 1, "1.00 GiB"),
        (1024**2 - 5, "1.00 MiB"),
        (1024**2 - 6, "1023.99 KiB"),
        (1536 * 1024**4, "1536.00 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_a_size_is_written_in_the_unit_a_person_would_choose(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@given(sizes)
def test_what_is_written_is_read_back_to_half_of_its_last_decimal(num_bytes: int) -> None:
    text = format_bytes(num_bytes)
    unit = text.split()[1]
    assert 200 * abs(parse_bytes(text) - num_bytes) <= UNITS[unit] + 200


@given(sizes, sizes)
def test_a_larger_size_never_reads_smaller(a: int, b: int) -> None:
    smaller, larger = sorted((a, b))
    assert parse_bytes(format_bytes(smaller)) <= parse_bytes(format_bytes(larger))


@given(st.integers(min_value=1, max_value=1023), st.sampled_from(sorted(BINARY)))
def test_whole_binary_units_survive_the_round_trip(count: int, prefix: str) -> None:
    assert parse_bytes(format_bytes(count * BINARY[prefix])) == count * BINARY[prefix]


@pytest.mark.parametrize(
    ("text", "share"), [("3%", "0.03"), ("0.03", "0.03"), (" 2.5 % ", "0.025"), ("0", "0"), ("0%", "0")]
)
def test_a_percentage_and_a_share_read_the_same(text: str, share: str) -> None:
    assert parse_percent(text) == Decimal(share)


@pytest.mark.parametrize("text", ["3", "100%", "1", "-3%", "", "%", "3 percent", "nan", "1e-2", "0,03"])
def test_what_is_no_share_below_the_whole_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a share below 100%: write it as 3% or 0\.03"):
        parse_percent(text)


@given(st.integers(min_value=0, max_value=9999))
def test_hundredths_of_a_percent_are_exact(hundredths: int) -> None:
    share = parse_percent(f"{hundredths // 100}.{hundredths % 100:02}%")
    assert share * 10000 == hundredths
