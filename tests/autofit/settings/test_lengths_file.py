"""Lengths of samples, from files as users have them."""

from __future__ import annotations

import json

import pytest

from autofit.settings.lengths import worst_case_lengths
from autofit.settings.lengths_file import lengths, read_lengths

TOKENS = (7, 130, 7, 64)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokens.txt", "7\n130\n\n7\n 64 \n"),
        ("tokens.csv:n", "id,n\na,7\nb,130\nc,7\nd,64\n"),
        ("tokens.tsv:n", "id\tn\na\t7\nb\t130\nc\t7\nd\t64\n"),
        ("tokens.jsonl:n", "".join(json.dumps({"n": n}) + "\n" for n in TOKENS)),
        ("tokens.csv:n", "text,n\n" + "".join(f'"{140_000 * "a"}",{n}\n' for n in TOKENS)),
        (
            "tokens.jsonl:n",
            "".join(json.dumps({"text": "a\u2028b", "n": n}, ensure_ascii=False) + "\n" for n in TOKENS),
        ),
        ("tokens.jsonl:ids", "".join(json.dumps({"ids": [5] * n}) + "\n" for n in TOKENS)),
    ],
)
def test_the_lengths_of_a_file(tmp_path, name, text):
    (tmp_path / name.partition(":")[0]).write_text(text)
    found = read_lengths(str(tmp_path / name))
    assert (found.lengths, found.num_up_to, found.multiple) == ((7, 64, 130), (2, 3, 4), 1)
    assert found.worst(1) == 130


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("tokens.txt", "7\nmany\n", "line 2, 'many', is no number of tokens: expected 1 or more"),
        ("tokens.txt", "7\n\nmany\n", "line 3, 'many', is no number of tokens"),
        ("tokens.csv:n", "n,m\n7,1\nmany,1\n", "row 2, 'many', is no number of tokens"),
        ("tokens.csv:n", "n,m\n7,1\n,1\n", "row 2, '', is no number of tokens"),
        ("tokens.txt", "7\n-3\n", "line 2, '-3', is no number of tokens"),
        ("tokens.txt", "0\n", "line 1, '0', is no number of tokens"),
        ("tokens.txt", "\n", "is empty: give a number of tokens on each line"),
        ("tokens.csv", "n\n7\n", "is a table: name its column, as in"),
        ("tokens.csv:tokns", "tokens\n7\n", "has no column 'tokns'. Did you mean tokens?"),
        ("tokens.jsonl:n", "7\n", "has no column 'n'"),
        ("tokens.jsonl:n", '{"n": 7}\nseven\n', "line 2 of .* is no JSON: expected an object a line"),
        ("missing.txt", None, "cannot be read: No such file"),
    ],
)
def test_what_is_no_such_file_is_told_in_one_sentence(tmp_path, name, text, said):
    if text is not None:
        (tmp_path / name.partition(":")[0]).write_text(text)
    with pytest.raises(ValueError, match=said.replace("?", "[?]")) as error:
        read_lengths(str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_lengths_that_python_counted_are_rounded_up_as_those_of_a_file_are(tmp_path):
    (tmp_path / "tokens.txt").write_text("7\n130\n7\n64\n")
    assert lengths(worst_case_lengths(TOKENS)) == lengths(tmp_path / "tokens.txt")
