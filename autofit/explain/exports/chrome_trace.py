"""A profile as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The fields are those of the "Trace Event Format": counters (`C`) of what is allocated and reserved,
complete slices (`X`) of phases, modules and operators, an instant (`i`) at the peak, names (`M`).
A profile has no time in it: one memory event takes one microsecond of the trace.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Collection, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from autofit.explain.profile import Phase, Profile
from autofit.explain.views.selection import phases_of
from autofit.explain.views.timeline import Course, course_of
from autofit.units import format_bytes
from workers.trace import Category

TIME_UNIT = "one microsecond stands for one memory event: a profile records their order, not their time"

_PHASES, _MODULES = 1, 2  # threads of a device's process

Event = dict[str, Any]
_Run = tuple[int, int, str, str]


def chrome_trace(
    profile: Profile, *, step: int | None = None, categories: Collection[Category] = ()
) -> dict[str, Any]:
    """The document, in the format's form with an object at its top.

    Args:
        step: the one to show, 0 being the building of the model; all if None.
        categories: those that get a counter; all if empty.

    Raises:
        UsageError: the profile has no such step.
    """
    course = course_of(profile)
    called = {call.position for call in profile.trace.calls}
    shown = [phase for phase in phases_of(profile, step) if phase.start < phase.stop]
    wanted = [category for category in course.categories if not categories or category in categories]
    events: list[Event] = []
    for process, device in enumerate(profile.devices, 1):
        events += _names(profile, process, device)
        if shown:
            events.append(_peak(course, shown, process))
        for phase in shown:
            events.append(_slice(process, phase.label, "phase", (phase.start, phase.stop)))
            events += _nested_slices(_runs(profile, phase, called), course, process)
        events += _counters(course, shown, wanted, process)
    trace = profile.trace
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "time_unit": TIME_UNIT,
            "workload": trace.workload,
            "batch_size": trace.batch_size,
            "mode": trace.mode,
            "card": profile.card,
            "evidence": "predicted",
            "peak_allocated_bytes": profile.peak_allocated_bytes,
            "peak_reserved_bytes": profile.peak_reserved_bytes,
            "versions": profile.versions,
        },
    }


def encode_chrome_trace(document: dict[str, Any], path: Path) -> bytes:
    """The bytes of a document for a file of that name: gzipped where it ends in `.gz`."""
    text = json.dumps(document, separators=(",", ":")).encode()
    return gzip.compress(text, compresslevel=4, mtime=0) if path.suffix == ".gz" else text


def _names(profile: Profile, process: int, device: str) -> Iterator[Event]:
    trace = profile.trace
    title = f"{device}: {trace.workload} at batch {trace.batch_size} on {profile.card}, predicted"
    yield _name(process, 0, "process_name", name=title)
    for thread, name in ((_PHASES, "phases"), (_MODULES, "modules and operators")):
        yield _name(process, thread, "thread_name", name=name)
        yield _name(process, thread, "thread_sort_index", sort_index=thread)


def _name(process: int, thread: int, kind: str, **args: object) -> Event:
    return {"ph": "M", "ts": 0, "pid": process, "tid": thread, "name": kind, "args": args}


def _peak(course: Course, shown: list[Phase], process: int) -> Event:
    index = max((i for p in shown for i in range(p.start, p.stop)), key=course.allocated.__getitem__)
    num_bytes = course.allocated[index]
    name = f"peak: {format_bytes(num_bytes)} allocated"
    args = {"allocated": num_bytes, "reserved": course.reserved[index]}
    return {"ph": "i", "s": "p", "ts": index, "pid": process, "tid": _PHASES, "name": name, "args": args}


def _slice(process: int, name: str, kind: str, span: tuple[int, int], **args: object) -> Event:
    start, stop = span
    return {
        "ph": "X",
        "ts": start,
        "dur": stop - start,
        "pid": process,
        "tid": _PHASES if kind == "phase" else _MODULES,
        "name": name,
        "cat": kind,
        "args": args,
    }


# ── modules and operators ───────────────────────────────────────────────────────────────────────


def _nested_slices(runs: Iterable[_Run], course: Course, process: int) -> Iterator[Event]:
    """A slice for each run of a module's events, with those of its children and operators in it.

    Two paths share the slices of what they have in common: `features.0` and `features.3` lie in
    one of `features`.
    """
    open_slices: list[Event] = []
    for start, stop, module, operator in runs:
        parts = module.split(".") if module else []
        shared = 0
        while shared < min(len(parts), len(open_slices)) and open_slices[shared]["name"] == parts[shared]:
            shared += 1
        del open_slices[shared:]
        for depth in range(shared, len(parts)):
            path = ".".join(parts[: depth + 1])
            opened = _slice(process, parts[depth], "module", (start, stop), path=path)
            open_slices.append(opened)
            yield opened
        for each in open_slices:
            each["dur"] = stop - each["ts"]
        before = course.allocated[start - 1] if start else 0
        yield _slice(
            process,
            operator or "outside any operator",
            "operator",
            (start, stop),
            path=module,
            allocated_change_bytes=course.allocated[stop - 1] - before,
        )


def _runs(profile: Profile, phase: Phase, called: Container[int]) -> Iterator[_Run]:
    """Where each operator's events start and stop, with its module and name.

    A free is nobody's, so it belongs to the operator before it. Operators without events of their
    own, such as views and those in place, take no room on the axis. `called` are the positions at
    which operators began.
    """
    trace = profile.trace
    start, module, operator = phase.start, "", ""
    for position in range(phase.start, phase.stop):
        event = trace.events[position]
        if event < 0:
            continue
        allocation = trace.allocations[event]
        if (allocation.module, allocation.operator) != (module, operator) or position in called:
            if start < position:
                yield start, position, module, operator
            start, module, operator = position, allocation.module, allocation.operator
    yield start, phase.stop, module, operator


# ── counters ────────────────────────────────────────────────────────────────────────────────────


def _counters(
    course: Course, shown: Iterable[Phase], categories: Iterable[Category], process: int
) -> Iterator[Event]:
    """Where each counter changes, one after the other and each in the order of time."""
    counters = [("allocated", course.allocated), ("reserved", course.reserved)]
    counters += [(f"allocated: {category}", course.categories[category]) for category in categories]
    for name, column in counters:
        last = None
        for phase in shown:
            for position in range(phase.start, phase.stop):
                if column[position] != last:
                    last = column[position]
                    args = {"bytes": last}
                    yield {"ph": "C", "ts": position, "pid": process, "tid": 0, "name": name, "args": args}
