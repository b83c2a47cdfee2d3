"""Pickles of others: plain values are read as Python reads them, and nothing else is."""

from __future__ import annotations

import collections
import io
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from autofit_workers.spec import pickles
from autofit_workers.spec.documents import DocumentError
from autofit_workers.spec.pickles import parse_pickle

SHARED = [{"filename": "a.py", "line": 1, "name": "f"}]
PLAIN = {
    "": [], "numbers": [0, 1, 255, 256, 65_535, 65_536, -1, 2**31, -(2**31), 2**63 - 1, 2**64 - 1],
    "more numbers": [0.5, -1e300],
    "texts": ["", "ascii", "ümläut", "𝄞", "x" * 300, "y" * 70_000], "truth": [True, False, None],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)], 3: {"nested": {"deeper": [[[]]]}},
    "shared": [SHARED] * 400, "many": [[n] for n in range(3000)],
}  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_read_as_python_reads_them(protocol: int) -> None:
    data = pickle.dumps(PLAIN, protocol)
    assert parse_pickle(data) == pickle.loads(data) == PLAIN
    found = parse_pickle(data)["shared"]
    assert all(each is found[0] for each in found)


class Opener:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("/tmp/must-not-be-made"),)


@pytest.mark.parametrize(
    "value",
    [os.system, collections.OrderedDict(a=1), Opener(), {1, 2}, b"bytes", bytearray(b"b"), 2j, [Path("/")]],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_name_is_never_looked_up(value: object, protocol: int) -> None:
    with pytest.raises(DocumentError, match=r"does more than hold texts and numbers|a damaged"):
        parse_pickle(pickle.dumps([value], protocol))


def deep_key(levels: int) -> bytes:
    return b"\x80\x04}" + b")" + b"\x85" * levels + b"Ns."


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80", b"\x80\x04", b"(lp0\n.", b"\x80\x06N.", b"\x80\x04.", b"\x80\x04(.", b"\x80\x04N",
        b"\x80\x04NN.", b"\x80\x04h\x05.", b"\x80\x04\x94.", b"\x80\x04a.", b"\x80\x04Na.", b"\x80\x04u.",
        b"\x80\x04}(Nu.",
        b"\x80\x04}(NNu.", b"\x80\x04\x87.", b"\x80\x04t.", b"\x80\x04(\x85.", b"\x80\x04G\0.",
        b"\x80\x04J\0", b"\x80\x04\x8d" + b"\xff" * 8 + b"x.", b"\x80\x04X\xff\xff\xff\x7fab.",
        b"\x80\x04\x8c\x02\xff\xff.",
        b"\x80\x04]r\xff\xff\xff\x7f.", b"\x80\x04\x8a\x0a" + b"\x7f" * 10 + b".",
        b"\x80\x05\x96" + b"\xff" * 8 + b".",
        b"\x80\x04\x95" + b"\xff" * 8, deep_key(100_000),
    ],
)  # fmt: skip
def test_a_malformed_pickle_is_refused_in_one_predicate(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DocumentError, match=r"^(is|has) [^\n]{1,150}$"):
            parse_pickle(data)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


def test_half_of_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert parse_pickle(pickle.dumps("a\ud800b", 4)) == "a?b"


def test_a_list_that_holds_itself_can_be_read() -> None:
    value: list[Any] = []
    value.append(value)
    found = parse_pickle(pickle.dumps(value, 4))
    assert found[0] is found


def test_memory_and_instructions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    many = b"\x80\x04(" + b"}" * 100_000 + b"t."
    assert len(parse_pickle(many)) == 100_000
    monkeypatch.setattr(pickles, "MOST_VALUE_BYTES", 1 << 20)
    with pytest.raises(DocumentError, match="more values than"):
        parse_pickle(many)
    monkeypatch.setattr(pickles, "MOST_INSTRUCTIONS", 1000)
    with pytest.raises(DocumentError, match="more than 1,000 instructions"):
        parse_pickle(b"\x80\x04" + b"N" * 2000 + b".")
    monkeypatch.setattr(pickles, "MOST_PICKLE_BYTES", 10)
    with pytest.raises(DocumentError, match="is larger"):
        parse_pickle(many)


def test_every_cut_of_a_pickle_is_refused() -> None:
    file = io.BytesIO()
    pickle.dump({"segments": [SHARED, 2**40, 1.5, "text"]}, file, protocol=4)
    data = file.getvalue()
    for length in range(len(data)):
        with pytest.raises(DocumentError):
            parse_pickle(data[:length])
