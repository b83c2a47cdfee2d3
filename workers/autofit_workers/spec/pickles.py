"""Reads pickles of plain values from others, without ever looking a name up.

A pickle is a program. Python's own unpickler runs all of it but the lookups that `find_class` refuses, and
allocates what a number in the file says before there is anything to fill it with. `parse_pickle` knows only
the instructions that dicts, lists, tuples, strings and numbers are written with, as protocols 2 to 5 write
them (PEP 3154); anything else is refused. It keeps account of the memory of what it makes.

    bytes of the file             `spec.documents.read_file`, and MOST_PICKLE_BYTES
    instructions                  MOST_INSTRUCTIONS
    memory of the values          MOST_VALUE_BYTES, estimated
    whole numbers                 64 bits, with a sign
    keys of a dict                strings and whole numbers, which are hashed without recursion

Values may share parts. Whoever walks through a value has to count what is visited, since a list of ten
references to a list of ten references … is short in a file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from autofit_workers.spec.documents import DocumentError, LimitError

MOST_PICKLE_BYTES = 256 << 20
MOST_INSTRUCTIONS = 40_000_000
MOST_VALUE_BYTES = 1 << 30

_INTEGER_BYTES = 8
_LIST_BYTES, _DICT_BYTES, _TUPLE_BYTES, _NUMBER_BYTES, _TEXT_BYTES = 72, 240, 64, 32, 56
_ENTRY_BYTES, _PAIR_BYTES = 10, 60  # of a list's item, and of a pair of a dict with more than a few
_WIDEST_BYTES = 4  # bytes of a character in a text that has one beyond U+FFFF
_ACCOUNT_EVERY = 1 << 12  # instructions between looks at the account
_MARK = object()
_CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False}
_SIZES = {0x8C: 1, ord("X"): 4, 0x8D: 8}  # of a text's length
_DOUBLE = struct.Struct(">d")


def parse_pickle(data: bytes) -> Any:
    """Value in a pickle that holds dicts, lists, tuples, strings, numbers, truth values and None alone.

    Raises:
        DocumentError: `data` is no such pickle, is cut off or damaged, or is beyond a limit; the message is
            a predicate, to follow the document's name.
    """
    if len(data) > MOST_PICKLE_BYTES:
        raise LimitError(f"is larger than {MOST_PICKLE_BYTES >> 20} MiB")
    if data[:1] != b"\x80" or data[1:2] not in (b"\2", b"\3", b"\4", b"\5"):
        raise DocumentError("is no pickle of protocol 2 to 5")
    try:
        return _Reader(data).value()
    except (IndexError, struct.error) as error:
        raise DocumentError("is a damaged or truncated pickle") from error
    except UnicodeDecodeError as error:
        raise DocumentError("is a pickle with text that is not UTF-8") from error


class _Reader:
    """Runs the instructions of one pickle.

    Args:
        data: the pickle, of a protocol from 2 on.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[Any] = []
        self._memo: list[Any] = []
        self._made_bytes = 0

    def value(self) -> Any:
        """Runs the pickle and returns its value."""
        data, memo, stack = self._data, self._memo, self._stack
        position, end, others = 2, len(data), self._others()
        for count in range(MOST_INSTRUCTIONS):
            if not count % _ACCOUNT_EVERY:
                self._require_affordable()
            code = data[position]
            position += 1
            # The most frequent first: a reference, a memo, a number.
            if code == 0x68:  # BINGET
                stack.append(memo[data[position]])
                position += 1
            elif code == 0x94:  # MEMOIZE
                memo.append(stack[-1])
            elif code == 0x6A:  # LONG_BINGET
                stack.append(memo[int.from_bytes(data[position : position + 4], "little")])
                position += 4
            elif code == 0x4B:  # BININT1
                stack.append(data[position])
                position += 1
            elif code == 0x2E:  # STOP
                break
            elif code in others:
                position = others[code](code, position)
            else:
                raise _foreign(code)
            if position > end:
                raise DocumentError("is a truncated pickle")
        else:
            raise LimitError(f"has more than {MOST_INSTRUCTIONS:,} instructions")
        self._require_affordable()
        if len(stack) != 1 or stack[0] is _MARK:
            raise DocumentError("is a damaged pickle")
        return stack[0]

    def _others(self) -> dict[int, Callable[[int, int], int]]:
        """Methods of all further instructions, which take its code and return the position after it."""
        return {
            **dict.fromkeys(_CONSTANTS, self._constant),
            **dict.fromkeys(_SIZES, self._text),
            **dict.fromkeys((ord("]"), ord("}"), ord(")")), self._empty),
            **dict.fromkeys((ord("M"), ord("J")), self._short_integer),
            **dict.fromkeys((ord("q"), ord("r")), self._put),
            **dict.fromkeys((ord("a"), ord("e")), self._append),
            **dict.fromkeys((ord("s"), ord("u")), self._set),
            **dict.fromkeys((ord("t"), 0x85, 0x86, 0x87), self._tuple),
            ord("("): self._mark,
            0x8A: self._long,
            ord("G"): self._double,
            0x95: self._frame,
        }

    def _constant(self, code: int, position: int) -> int:
        self._stack.append(_CONSTANTS[code])
        return position

    def _mark(self, _code: int, position: int) -> int:
        self._stack.append(_MARK)
        return position

    def _frame(self, _code: int, position: int) -> int:
        """Skips the length of a frame, which only says how far one may read ahead."""
        return position + 8

    def _short_integer(self, code: int, position: int) -> int:
        after = position + (2 if code == ord("M") else 4)
        self._stack.append(int.from_bytes(self._data[position:after], "little", signed=code == ord("J")))
        self._made_bytes += _NUMBER_BYTES
        return after

    def _long(self, _code: int, position: int) -> int:
        size = self._data[position]
        after = position + 1 + size
        number = int.from_bytes(self._data[position + 1 : after], "little", signed=True)
        if size > _INTEGER_BYTES and not 0 <= number < 1 << 64:  # an unsigned one takes nine bytes
            raise DocumentError("has a whole number of more than 64 bits")
        self._stack.append(number)
        self._made_bytes += _NUMBER_BYTES
        return after

    def _double(self, _code: int, position: int) -> int:
        self._stack.append(_DOUBLE.unpack_from(self._data, position)[0])
        self._made_bytes += _NUMBER_BYTES
        return position + 8

    def _text(self, code: int, position: int) -> int:
        start = position + _SIZES[code]
        after = start + int.from_bytes(self._data[position:start], "little")
        if after > len(self._data):
            raise DocumentError("is a truncated pickle")
        text = self._data[start:after].decode(errors="surrogatepass")
        if not text.isascii():
            # Half of a surrogate pair could not be written as UTF-8 again.
            text = text.encode(errors="replace").decode()
            self._made_bytes += _WIDEST_BYTES * len(text)
        self._stack.append(text)
        self._made_bytes += _TEXT_BYTES + len(text)
        return after

    def _empty(self, code: int, position: int) -> int:
        if code == ord("]"):
            self._stack.append([])
            self._made_bytes += _LIST_BYTES
        elif code == ord("}"):
            self._stack.append({})
            self._made_bytes += _DICT_BYTES
        else:
            self._stack.append(())
        return position

    def _put(self, code: int, position: int) -> int:
        after = position + (1 if code == ord("q") else 4)
        place = int.from_bytes(self._data[position:after], "little")
        if place > len(self._memo):
            raise DocumentError("is a damaged pickle")  # Python writes them in order
        self._memo[place : place + 1] = [self._stack[-1]]
        return after

    def _append(self, code: int, position: int) -> int:
        items = [self._stack.pop()] if code == ord("a") else self._until_mark()
        target = self._stack[-1]
        if type(target) is not list:
            raise DocumentError("is a damaged pickle")
        target += items
        self._made_bytes += _ENTRY_BYTES * len(items)
        return position

    def _set(self, code: int, position: int) -> int:
        items = [self._stack.pop(-2), self._stack.pop()] if code == ord("s") else self._until_mark()
        target, keys = self._stack[-1], items[::2]
        if type(target) is not dict or len(items) % 2:
            raise DocumentError("is a damaged pickle")
        if not all(type(key) in (str, int) for key in keys):
            raise DocumentError("has a dict with keys that are neither texts nor whole numbers")
        target.update(zip(keys, items[1::2], strict=True))
        self._made_bytes += _PAIR_BYTES * len(keys)
        return position

    def _tuple(self, code: int, position: int) -> int:
        if code == ord("t"):
            items = self._until_mark()
        else:
            items = [self._stack.pop() for _ in range(code - 0x84)][::-1]
        if _MARK in items:
            raise DocumentError("is a damaged pickle")
        self._stack.append(tuple(items))
        self._made_bytes += _TUPLE_BYTES + 8 * len(items)
        return position

    def _until_mark(self) -> list[Any]:
        """Takes the values above the last mark, and the mark, off the stack."""
        stack, place = self._stack, len(self._stack) - 1
        while stack[place] is not _MARK:
            if not place:
                raise DocumentError("is a damaged pickle")
            place -= 1
        items = stack[place + 1 :]
        del stack[place:]
        return items

    def _require_affordable(self) -> None:
        kept_bytes = 8 * (len(self._stack) + len(self._memo))
        if self._made_bytes + kept_bytes > MOST_VALUE_BYTES:
            raise LimitError("has more values than a gigabyte can hold")


def _foreign(code: int) -> DocumentError:
    return DocumentError(
        f"is a pickle that does more than hold texts and numbers (instruction {code:#04x}), so it is not read"
    )
