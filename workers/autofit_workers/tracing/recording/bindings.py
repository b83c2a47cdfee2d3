"""Finds the variable to which Python code assigns an operator's result, by the caller's bytecode.

If the instruction after the call stores the result, it has that variable's name; if it returns the result,
the next instruction of the caller decides; otherwise the result is a temporary without a name.

    y = self.layer(x) + 1      CALL, BINARY_OP: a temporary       BINARY_OP, STORE_FAST y: "y"
"""

from __future__ import annotations

import dis
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from enum import Enum, auto
from types import CodeType, FrameType

from autofit_workers.tracing.recording.call_sites import callers, hands_on, is_engine

_STORES = {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"}
_LOADS = {"LOAD_ATTR", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_GLOBAL", "LOAD_NAME"}
_BEFORE_A_STORE = {"COPY", "DUP_TOP", "UNPACK_SEQUENCE", "UNPACK_EX"}  # DUP_TOP: Python 3.10
_PASSED_OVER = {"NOP", "PRECALL", "POP_BLOCK"}
_RETURN = "RETURN_VALUE"
# Instructions that leave a `with` block when a value is returned from within it: the first, and all.
_BEGINS_TO_LEAVE = {"SWAP", "ROT_TWO"}  # ROT_TWO: Python 3.10
_LEAVING_WITH = {*_BEGINS_TO_LEAVE, "LOAD_CONST", "DUP_TOP", "CALL", "CALL_FUNCTION", "POP_TOP"}
_BRANCHES = {*dis.hasjrel, *dis.hasjabs}


class _Fate(Enum):
    """Fate of an operator's result that no variable holds: it is returned, or dropped."""

    RETURNED = auto()
    DROPPED = auto()


class Bindings:
    """Finds the variable names of operators' results in bytecode, which it caches by code object."""

    def __init__(self) -> None:
        # By id, as comparing code objects is slow; the code is kept so that its id is not reused.
        self._read: dict[int, tuple[CodeType, list[dis.Instruction]]] = {}
        self._fates: dict[tuple[int, int], str | _Fate] = {}

    def name_of(self, frame: FrameType | None) -> str:
        """Name of the variable that gets the result of the operator called in `frame`; empty if none.

        If a function only returns the result, the variable is searched in its caller.
        """
        for caller in callers(frame):
            if is_engine(caller):
                return ""  # the engine returns no operator's result
            if hands_on(caller):
                continue
            fate = self._fate(caller.f_code, caller.f_lasti)
            if isinstance(fate, str):
                return fate
            if fate is _Fate.DROPPED:
                return ""
        return ""

    def _fate(self, code: CodeType, offset: int) -> str | _Fate:
        key = (id(code), offset)
        if key not in self._fates:
            if id(code) not in self._read:
                self._read[id(code)] = code, list(dis.get_instructions(code))
            instructions = self._read[id(code)][1]
            # Since Python 3.11, `f_lasti` is the last cache entry after the call's instruction.
            index = bisect_right(instructions, offset, key=lambda each: each.offset) - 1
            self._fates[key] = _fate_after(instructions, index)
        return self._fates[key]


def _fate_after(instructions: list[dis.Instruction], index: int) -> str | _Fate:
    """Name of the variable that gets the value pushed by the instruction at `index`, or the value's fate.

    If no variable gets it, whether it is returned or dropped.
    """
    path = list(_following(instructions, index))
    if instructions[index].opname == "PRECALL" and path and path[0].opname == "CALL":
        del path[0]  # part of the same call
    is_left = itertools.takewhile(lambda each: each.opname in _LEAVING_WITH, path)
    num_leaving = len(list(is_left))
    begins_to_leave = num_leaving == 0 or path[0].opname in _BEGINS_TO_LEAVE
    if begins_to_leave and num_leaving < len(path) and path[num_leaving].opname == _RETURN:
        return _Fate.RETURNED
    names, rest = _stored(path)
    if not names:
        return _Fate.DROPPED
    if [each.opname for each in rest[1:2]] == [_RETURN] and rest[0].argval == names[-1]:
        return _Fate.RETURNED  # assigned only to be returned
    return ", ".join(names)


def _following(instructions: list[dis.Instruction], index: int) -> Iterator[dis.Instruction]:
    """Yields the instructions that always run after the one at `index`, up to a branch or return."""
    while index + 1 < len(instructions):
        index += 1
        each = instructions[index]
        if each.opname == "JUMP_FORWARD":
            index = bisect_left(instructions, each.argval, key=lambda each: each.offset) - 1
        elif each.opname not in _PASSED_OVER:
            yield each
            if each.opname == _RETURN or each.opcode in _BRANCHES:
                return


def _stored(path: list[dis.Instruction]) -> tuple[list[str], list[dis.Instruction]]:
    """Names of variables to which the value on the stack is assigned, and the instructions that follow."""
    names: list[str] = []
    for index, each in enumerate(path):
        if each.opname in _STORES:
            names.append(each.argval)
        elif each.opname == "STORE_FAST_STORE_FAST":  # two stores in one, since Python 3.13
            names += each.argval
        elif each.opname == "STORE_FAST_LOAD_FAST":
            names.append(each.argval[0])
            return names, [each._replace(argval=each.argval[1]), *path[index + 1 :]]
        elif each.opname not in _BEFORE_A_STORE:
            return names or _attribute(path[index:]), path[index:]
    return names, []


def _attribute(path: list[dis.Instruction]) -> list[str]:
    """Name of the attribute to which the value on the stack is assigned, in a list; empty for none."""
    after = itertools.dropwhile(lambda each: each.opname in _LOADS, path)
    store = next(after, None)
    return [store.argval] if store is not None and store.opname == "STORE_ATTR" else []
