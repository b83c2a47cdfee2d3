"""Log of the operators that ran, in their order, with the names that their results were bound to."""

from __future__ import annotations

import dataclasses
from types import FrameType

from autofit_workers.spec.trace import Call
from autofit_workers.tracing.recording.bindings import Bindings
from autofit_workers.tracing.recording.call_sites import callers


class CallLog:
    """Collects the calls of operators.

    One call in Python may run several operators; it returns the result of the last, which so gets the
    name.

    Attributes:
        calls: the calls so far; the name of the last is not final.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._bindings = Bindings()
        self._site: tuple[object, ...] = ()  # where in Python the last operator was called from …
        self._first_operator = ""  # … and the first that was run there

    def add(self, call: Call, frame: FrameType | None) -> None:
        """Appends a call, under the name that `frame`, which made it, binds the result to."""
        name = self._bindings.name_of(frame)
        site = _site(call, frame) if name else ()
        # The same operator as at first is a loop's next round rather than a further part of one call.
        if not name or site != self._site or call.operator == self._first_operator:
            self._first_operator = call.operator
        elif not set(call.outputs) & set(self.calls[-1].outputs):  # else a view of the same memory
            self.calls[-1] = dataclasses.replace(self.calls[-1], name="")
        self._site = site
        self.calls.append(dataclasses.replace(call, name=name))

    def settle(self, number: int, output: int) -> None:
        """Sets the allocation that a call's result lies in, where that was not known when it was added."""
        self.calls[number] = dataclasses.replace(self.calls[number], outputs=(output,))


def _site(call: Call, frame: FrameType | None) -> tuple[object, ...]:
    """Key that tells calls in Python apart, except for the rounds of a loop."""
    frames = list(callers(frame))
    return call.module, id(frames[0]), *((id(each.f_code), each.f_lasti) for each in frames)
