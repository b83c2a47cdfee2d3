"""What others wrote, as it may be shown."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit_workers.spec.shown import LONGEST, brief, has_secret, redacted, redacted_place, shown, visible
from tests.secret_urls import SECRET, SECRET_TEXTS, SECRET_URLS

HARMLESS = (
    "http://head:8265",
    "http://head:8265/jobs?limit=10",
    "see http://[::1]:8265, or ray://host:port",
    "sqlite:///studies.db",
    "sqlite:////home/me/studies.db?timeout=5",
    "postgresql://user@host:5432/studies",
    "postgresql:///studies?host=/var/run/postgresql",
    "s3://bucket/x.zip",
    "auto",
    "10.0.0.1:6379",
    "train.py:workload",
    "hf:org/model@main",
    "num_tokens=128, pad_token=0, key=query",
    "Embedding(token=128), max_new_token=-1 token=0.5;",
    "tokenizer(pad_token='[PAD]', eos_token=<|endoftext|>, unk_token=None)",
    "a basic block, authorization failed: basic checks",
    "storage=auto, sort_key=name, tokens=many, token: each",
    "'it' is 'quoted', with key='x'",
    'File "/home/me/train.py", line 3, in forward',
    "aten::add.Tensor(Tensor self, Tensor other)",
    "C:\\work\\train.py:3",
    "mail me@example.org at 12:30",
    "see http://head:8265 or mail me@example.org; ray://host:port is for you@example.org",
    '{"a":"x","mail":"me@example.org"}',
)


def test_there_are_more_than_fifty_spellings() -> None:
    assert len(set(SECRET_URLS)) >= 50
    assert all(SECRET in url for url in SECRET_URLS)


@pytest.mark.parametrize("url", SECRET_URLS)
def test_no_spelling_of_an_address_keeps_its_secret(url: str) -> None:
    assert has_secret(url)
    assert SECRET not in redacted_place(url)
    for sentence in (url, f"cannot reach {url}: refused", f"'{url}'", f"({url})", repr(url), f'"{url}",'):
        assert SECRET not in redacted(sentence)


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_no_spelling_in_a_text_keeps_its_secret(text: str) -> None:
    for sentence in (text, f"cannot connect with {text}: refused", f"'{text}'", f"({text})", repr(text)):
        assert SECRET not in redacted(sentence)
        assert redacted(redacted(sentence)) == redacted(sentence)
    for separators in ((", ", ": "), (",", ":")):
        document = {"first": 'a "quoted" word', "said": text, "next": ["it's", {"a": "'"}]}
        told = redacted(json.dumps(document, separators=separators))
        assert SECRET not in told
        assert {**json.loads(told), "said": ""} == {**document, "said": ""}


@pytest.mark.parametrize("text", HARMLESS)
def test_what_has_no_secret_stays_as_it_is(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://me:pw@db:5432/x refused", "postgresql://me:***@db:5432/x refused"),
        ("http://head/?token=pw&limit=3", "http://head/?token=***&limit=3"),
        ("password=pw host=db", "password=*** host=db"),
        ("{'password': 'p w', 'host': 'db'}", "{'password': '***', 'host': 'db'}"),
        ("RAY_AUTH_TOKEN=pw autofit jobs", "RAY_AUTH_TOKEN=*** autofit jobs"),
        ("Authorization: Bearer pw", "Authorization: Bearer ***"),
        ("{'Authorization': 'Basic cHc='}", "{'Authorization': 'Basic ***'}"),
        ("password='a b c' host=db", "password=*** host=db"),
        ("password=1234 access_token=7", "password=*** access_token=***"),
        ("AUTOFIT_STORAGE_KEY=pw autofit serve", "AUTOFIT_STORAGE_KEY=*** autofit serve"),
    ],
)
def test_only_the_secret_goes(text: str, expected: str) -> None:
    assert redacted(text) == expected


@pytest.mark.parametrize("url", SECRET_URLS)
@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_a_document_stays_one(url: str, separators: tuple[str, str]) -> None:
    document = {"first": 'a "quoted" word', "where": url, "mail": "me@example.org", "many": [url, 1]}
    text = redacted(json.dumps(document, separators=separators))
    read = json.loads(text)
    assert (read.keys(), read["first"]) == (document.keys(), document["first"])
    assert SECRET not in text


@given(st.text(st.characters(), max_size=80))
def test_nothing_that_is_shown_moves_a_terminal(text: str) -> None:
    for char in visible(text):
        assert char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(char) not in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )


@given(
    st.recursive(st.text(max_size=20), lambda inner: st.dictionaries(st.text(max_size=5), inner, max_size=3))
)
def test_any_document_stays_valid(document: object) -> None:
    json.loads(shown(json.dumps(document)))
    json.loads(shown(json.dumps(document, ensure_ascii=False)))


@pytest.mark.parametrize("end", ["password=", "passwd: ", "password = "])
def test_a_document_whose_text_ends_before_a_password_stays_one(end: str) -> None:
    document = {"a": end, "b": [end, {"c": end}], "d": "it's"}
    for indent in (None, 2):
        assert json.loads(redacted(json.dumps(document, indent=indent))) == document


@given(st.text("ab:/@=?&%\"'\\ \x1b", max_size=60))
def test_showing_twice_is_showing_once(text: str) -> None:
    assert shown(shown(text)) == shown(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
        ("\x9b2J", "\\u009b2J"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("name\udcff", "name\\udcff"),
        ("tab\tand é 3×224 █ 日本", "tab\tand é 3×224 █ 日本"),
    ],
)
def test_what_a_terminal_would_obey_is_spelled_out(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_others_words_in_a_sentence_are_one_short_line() -> None:
    assert brief("one\n two\tthree") == "one two three"
    long = brief("x" * 10_000)
    assert (len(long), long[-1]) == (LONGEST, "…")
