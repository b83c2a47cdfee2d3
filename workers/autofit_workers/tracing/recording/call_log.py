"""Log of a step's operators in order, with the variable names of their results."""

from __future__ import annotations

import dataclasses
from types import FrameType

from autofit_workers.spec.trace import Call
from autofit_workers.tracing.recording.bindings import Bindings
from autofit_workers.tracing.recording.call_sites import callers


class CallLog:
    """Log of operator calls, each with its result's variable name.

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
        """Appends a call, under the variable name that its result gets in `frame`."""
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
        """Sets the allocation that holds a call's result, if unknown when the call was added."""
        self.calls[number] = dataclasses.replace(self.calls[number], outputs=(output,))


def _site(call: Call, frame: FrameType | None) -> tuple[object, ...]:
    """Key of the place in Python that made a call; equal in every iteration of a loop."""
    frames = list(callers(frame))
    return call.module, id(frames[0]), *((id(each.f_code), each.f_lasti) for each in frames)
