"""Log of a step's operators in order, with the variable names of their results."""

from __future__ import annotations

import dataclasses
from types import FrameType

from autofit_workers.spec.trace import Call
from autofit_workers.tracing.recording.bindings import Bindings
from autofit_workers.tracing.recording.call_sites import callers


class CallLog:
    """Log of operator calls, each with the name of the variable that its result is assigned to.

    One Python call may run several operators; the last of them gets the name, as the call returns its result.

    Attributes:
        calls: the calls so far; the last may still lose its name to the next.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._bindings = Bindings()
        self._site: tuple[object, ...] = ()  # place in Python of the last operator's call
        self._first_operator = ""  # first operator run at that place

    def add(self, call: Call, frame: FrameType | None) -> None:
        """Appends a call, with the name of the variable that gets its result.

        Args:
            call: the operator's call.
            frame: innermost Python frame of the call; the variable is searched in it and its callers.
        """
        name = self._bindings.name_of(frame)
        site = _site(call, frame) if name else ()
        # If the place's first operator runs again, a loop has gone on to its next iteration.
        if not name or site != self._site or call.operator == self._first_operator:
            self._first_operator = call.operator
        elif not set(call.outputs) & set(self.calls[-1].outputs):  # else the call returned a view
            self.calls[-1] = dataclasses.replace(self.calls[-1], name="")
        self._site = site
        self.calls.append(dataclasses.replace(call, name=name))

    def settle(self, number: int, output: int) -> None:
        """Sets which allocation holds the result of a call for which that was not known yet.

        Args:
            number: index of the call in `calls`.
            output: index of the allocation.
        """
        self.calls[number] = dataclasses.replace(self.calls[number], outputs=(output,))


def _site(call: Call, frame: FrameType | None) -> tuple[object, ...]:
    """Key of the place in Python code that made a call, equal in all iterations of a loop."""
    frames = list(callers(frame))
    return call.module, id(frames[0]), *((id(each.f_code), each.f_lasti) for each in frames)
