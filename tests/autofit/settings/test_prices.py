"""Prices of cards: files of `--prices`, and values of `--price`."""

from __future__ import annotations

import pytest

from autofit.errors import UsageError
from autofit.hardware.gpus import catalogue
from autofit.settings.prices import named_prices, read_prices


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.toml", 't4 = 0.35\n"A10G" = 1\n'),
        ("p.csv", "card,price\nt4, 0.35\n\na10g,1\n"),
        ("P.CSV", "\ufefft4,0.35\r\na10g,1.0\r\n"),
    ],
)
def test_a_file_names_cards_and_prices(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text.encode())
    assert read_prices(path) == {"t4": 0.35, "a10g": 1.0}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("p.toml", "t4 = 0", "'t4 = 0' is no price of a card"),
        ("p.toml", "t4 = true", "is no price"),
        ("p.toml", "t4 = [1]", "is no price"),
        ("p.csv", "t4,nan", "is no price"),
        ("p.toml", "t4 = 1\nT4 = 2", "t4 is named twice"),
        ("p.toml", "t4x = 1", "no card named 't4x'"),
        ("p.toml", "", "has no price"),
        ("p.toml", "t4 =", "is not what its ending says"),
        ("p.csv", "t4,1,2", "is no price"),
        ("p.csv", "t4", "is no price"),
        ("p.csv", "t4,-1", "is no price"),
        ("p.txt", "t4,1", "is no .toml or .csv file"),
        ("aws", "t4,1", "no price list comes with autofit"),
    ],
)
def test_what_is_no_price_is_said_with_the_file(tmp_path, name, text, said):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_prices(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_one_that_is_not_text_are_said(tmp_path):
    with pytest.raises(UsageError, match=r"gone\.csv cannot be read: No such file"):
        read_prices(tmp_path / "gone.csv")
    (tmp_path / "p.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not what its ending says"):
        read_prices(tmp_path / "p.csv")


def test_values_of_the_option_are_of_the_cards_that_are_asked():
    t4, l4 = catalogue()["t4"], catalogue()["l4"]
    assert named_prices(["t4=0.5", "L4=1"], (t4, l4)) == {"t4": 0.5, "l4": 1.0}
    for texts, said in ((["t4=0"], "no price"), (["t4=1", "t4=2"], "twice"), (["a100-40g=1"], "not among")):
        with pytest.raises(UsageError, match=said):
            named_prices(texts, (t4, l4))
