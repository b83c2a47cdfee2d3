"""Exports a profile as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The fields are those of the "Trace Event Format": counters (`C`) of allocated and reserved memory,
complete slices (`X`) of phases, modules, operators and kernels, an instant (`i`) at the peak, names (`M`).
`ts` and `dur` are microseconds, with digits down to a nanosecond.

The step with predicted times has a lane for the host's launches, one for the device's kernels, and the
memory as the host allocates it, all on one axis of time. If its seconds are too uncertain to be stated, the
step is drawn one second long, and only proportions have a meaning. A step without predicted times is drawn in
the order of its memory events, a microsecond for each.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.explain.profile import Phase, Profile, timed_step
from autofit.explain.timing import EventClock, Timing
from autofit.explain.views.selection import phases_of
from autofit.explain.views.timeline import Course, course_of
from autofit.units import format_bytes
from autofit_workers.replay.time.kernels import KernelClass
from autofit_workers.spec.trace import Category

EVENTS_UNIT = "one microsecond stands for one memory event: the order of events is known, not their time"
SECONDS_UNIT = "microseconds of the likely step, predicted"
SHARES_UNIT = (
    "relative: the step is drawn one second long, whatever it takes, so one microsecond stands for a "
    "millionth of it"
)

_PHASES, _MODULES, _KERNELS = 1, 2, 3  # threads of a device's process
_MICROSECONDS = 1_000_000

Event = dict[str, Any]
_Axis = Callable[[int], float]


def chrome_trace(
    profile: Profile, *, step: int | None = None, categories: Collection[Category] = ()
) -> dict[str, Any]:
    """Chrome trace of a profile, as a dict in the "JSON Object Format" of the trace event format.

    Args:
        step: number of the step to show, 0 for building the model. If None, it is the step with predicted
            times, or all steps if no times are predicted.
        categories: memory categories (activations, …) that get a counter; all if empty.

    Raises:
        UsageError: the profile has no such step.
    """
    timed = timed_step(profile)
    timing = profile.timing if step in (None, timed) else None
    course = course_of(profile)
    phases = phases_of(profile, step if timing is None else timed)
    shown = [phase for phase in phases if phase.start < phase.stop]
    wanted = [category for category in course.categories if not categories or category in categories]
    events: list[Event] = []
    for process, device in enumerate(profile.devices, 1):
        events += _names(profile, process, device, timing)
        if timing is None:
            events += _in_order(profile, course, shown, process)
            axis: _Axis = int
        else:
            lanes = TimedLanes(timing, course, phases, process)
            events += lanes.slices()
            axis = lanes.of_event
        if shown:
            events.append(_peak(course, shown, axis, process))
        events += _counters(course, shown, wanted, axis, process)
    trace = profile.trace
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms" if timing is None else "ns",  # with ms, viewers may round nanoseconds
        "otherData": {
            "time_unit": _time_unit(timing),
            "time_note": profile.time_note,
            "step_seconds": None
            if timing is None or timing.seconds is None
            else dataclasses.asdict(timing.seconds),
            "workload": trace.workload,
            "batch_size": trace.batch_size,
            "mode": trace.mode,
            "card": profile.card,
            "evidence": profile.evidence,
            "peak_allocated_bytes": profile.peak_allocated_bytes,
            "peak_reserved_bytes": profile.peak_reserved_bytes,
            "versions": profile.versions,
        },
    }


def encode_chrome_trace(document: dict[str, Any], path: Path) -> bytes:
    """Chrome trace encoded as the bytes of a file.

    Args:
        path: path of the file, which is not written here; the bytes are gzipped if it ends in `.gz`.
    """
    text = json.dumps(document, separators=(",", ":")).encode()
    return gzip.compress(text, compresslevel=4, mtime=0) if path.suffix == ".gz" else text


def _time_unit(timing: Timing | None) -> str:
    if timing is None:
        return EVENTS_UNIT
    return SHARES_UNIT if timing.seconds is None else SECONDS_UNIT


def _names(profile: Profile, process: int, device: str, timing: Timing | None) -> Iterator[Event]:
    """Yields the events that name the device's process and its threads in a Chrome trace."""
    is_relative = timing is not None and timing.seconds is None
    title = f"{device}: {profile.title} on {profile.card}, {profile.evidence}"
    yield _name(process, 0, "process_name", name=f"{title}, time is relative" if is_relative else title)
    threads = {_PHASES: "phases", _MODULES: "modules and operators"}
    if timing is not None:
        threads = {
            _PHASES: "host: phases",
            _MODULES: "host: launches of modules and operators",
            _KERNELS: "device: kernels",
        }
    for thread, name in threads.items():
        yield _name(process, thread, "thread_name", name=name)
        yield _name(process, thread, "thread_sort_index", sort_index=thread)


def _name(process: int, thread: int, kind: str, **args: object) -> Event:
    return {"ph": "M", "ts": 0, "pid": process, "tid": thread, "name": kind, "args": args}


def _peak(course: Course, shown: list[Phase], axis: _Axis, process: int) -> Event:
    """Instant event that marks the highest allocated memory in a Chrome trace."""
    index = max((i for p in shown for i in range(p.start, p.stop)), key=course.allocated.__getitem__)
    num_bytes = course.allocated[index]
    name = f"peak: {format_bytes(num_bytes)} allocated"
    args = {"allocated": num_bytes, "reserved": course.reserved[index]}
    return {
        "ph": "i",
        "s": "p",
        "ts": axis(index),
        "pid": process,
        "tid": _PHASES,
        "name": name,
        "args": args,
    }


# ── slices ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Run:
    """Span of a Chrome trace in which one operator runs.

    Attributes:
        start, stop: bounds on the trace's axis, in microseconds.
        module: path of the module that the operator belongs to.
        allocated_change_bytes: bytes by which allocated memory grows in the span.
    """

    start: float
    stop: float
    module: str
    operator: str
    allocated_change_bytes: int


def _slice(
    process: int, thread: int, name: str, kind: str, span: tuple[float, float], **args: object
) -> Event:
    """Event of a Chrome trace that shows a span as a bar."""
    start, stop = span
    return {
        "ph": "X",
        "ts": start,
        "dur": round(stop - start, 3),
        "pid": process,
        "tid": thread,
        "name": name,
        "cat": kind,
        "args": args,
    }


def _nested_slices(runs: Iterable[_Run], process: int) -> Iterator[Event]:
    """Yields a slice (a bar of the trace) for each run of a module, with its operators nested inside.

    Submodules nest in the slice of their parent: if `features.0` and `features.3` run one after the other,
    both lie in one slice of `features`.

    Args:
        runs: spans of operators, in their order.
        process: number of the device's process in the trace.
    """
    open_slices: list[Event] = []
    for run in runs:
        parts = run.module.split(".") if run.module else []
        shared = 0
        while shared < min(len(parts), len(open_slices)) and open_slices[shared]["name"] == parts[shared]:
            shared += 1
        del open_slices[shared:]
        for depth in range(shared, len(parts)):
            path = ".".join(parts[: depth + 1])
            opened = _slice(process, _MODULES, parts[depth], "module", (run.start, run.stop), path=path)
            open_slices.append(opened)
            yield opened
        for each in open_slices:
            each["dur"] = round(run.stop - each["ts"], 3)
        yield _slice(
            process,
            _MODULES,
            run.operator or "outside any operator",
            "operator",
            (run.start, run.stop),
            path=run.module,
            allocated_change_bytes=run.allocated_change_bytes,
        )


# ── in the order of memory events ───────────────────────────────────────────────────────────────


def _in_order(profile: Profile, course: Course, shown: Iterable[Phase], process: int) -> Iterator[Event]:
    called = {call.position for call in profile.trace.calls}
    for phase in shown:
        yield _slice(process, _PHASES, phase.label, "phase", (phase.start, phase.stop))
        yield from _nested_slices(_runs(profile, course, phase, called), process)


def _runs(profile: Profile, course: Course, phase: Phase, called: Container[int]) -> Iterator[_Run]:
    """Yields the span of each operator in a phase, on an axis where each memory event takes one microsecond.

    A free has no operator, so it belongs to the operator before it. Operators without memory events,
    such as views and in-place operators, take no room on the axis.

    Args:
        course: memory of the device after every event.
        phase: phase of a step, such as `forward`.
        called: numbers of events before each operator call; a new span begins there.
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
                yield _Run(start, position, module, operator, course.change_bytes(start, position))
            start, module, operator = position, allocation.module, allocation.operator
    yield _Run(start, phase.stop, module, operator, course.change_bytes(start, phase.stop))


# ── on the axis of time ─────────────────────────────────────────────────────────────────────────

# Names of colours that the format reserves, by the limit of a kernel's speed; Perfetto has its own by name.
_COLORS = {
    **dict.fromkeys(
        (KernelClass.MATMUL, KernelClass.ATTENTION, KernelClass.RECURRENT), "thread_state_running"
    ),
    KernelClass.CONVOLUTION: "rail_response",
    KernelClass.GROUPED_CONVOLUTION: "rail_animation",
    KernelClass.DEPTHWISE_CONVOLUTION: "rail_load",
    **dict.fromkeys((KernelClass.BATCH_NORM, KernelClass.LAYER_NORM, KernelClass.SOFTMAX), "cq_build_passed"),
    **dict.fromkeys((KernelClass.ELEMENTWISE, KernelClass.REDUCTION, KernelClass.POOL), "rail_idle"),
    **dict.fromkeys((KernelClass.COPY, KernelClass.REORDER, KernelClass.TRANSFER), "thread_state_iowait"),
    KernelClass.INDEX: "thread_state_runnable",
    KernelClass.OPTIMIZER: "cq_build_attempt_passed",
}
_OTHER_COLOR = "grey"


class TimedLanes:
    """Slices (bars) of a Chrome trace for one step, on an axis of predicted time.

    The axis is in microseconds; in millionths of the step if seconds are not predicted.

    Args:
        timing: predicted times of the step's operators.
        course: memory of the device after every event.
        shown: phases of the step, such as `forward`.
        process: number of the device's process in the trace.
    """

    def __init__(self, timing: Timing, course: Course, shown: Sequence[Phase], process: int) -> None:
        self._timing = timing
        self._course = course
        self._phases = shown
        self._process = process
        seconds = 1.0 if timing.seconds is None else timing.seconds.likely
        self._unit = seconds * _MICROSECONDS
        self._clock = EventClock.of_host(timing, shown[0].start, shown[-1].stop)

    def of_event(self, index: int) -> float:
        """Time on the trace's axis at which a memory event happens on the host.

        Args:
            index: index of the event in the profile's trace.
        """
        return self._at(self._clock.of_event(index))

    def slices(self) -> Iterator[Event]:
        """Yields the slices (bars) of the step's phases, of the host's kernel launches, and of kernels."""
        starts = [self._at(self._clock.at(phase.start)) for phase in self._phases]
        for phase, start, stop in zip(
            self._phases, starts, (*starts[1:], self._at(self._clock.end)), strict=True
        ):
            if start < stop:
                yield _slice(self._process, _PHASES, phase.label, "phase", (start, stop))
        yield from _nested_slices(self._launches(), self._process)
        yield from self._kernels()

    def _launches(self) -> Iterator[_Run]:
        calls = self._timing.calls
        ends = (*(call.position for call in calls[1:]), self._phases[-1].stop)
        for number, (call, end) in enumerate(zip(calls, ends, strict=True)):
            start, stop = self._at(self._clock.begin(number)), self._at(call.launched)
            if start < stop:
                change_bytes = self._course.change_bytes(call.position, end)
                yield _Run(start, stop, call.module, call.operator, change_bytes)

    def _kernels(self) -> Iterator[Event]:
        """Yields a slice (a bar) for each kernel on the device."""
        for call in self._timing.calls:
            share = call.start
            for kernel in call.kernels:
                start, stop = self._at(share), self._at(min(share + kernel.share, call.end))
                share += kernel.share
                if start < stop:
                    event = _slice(
                        self._process,
                        _KERNELS,
                        call.operator,
                        kernel.kind.value,
                        (start, stop),
                        path=call.module,
                        dtype=kernel.dtype,
                        flops=kernel.flops,
                        moved_bytes=kernel.moved_bytes,
                    )
                    yield {**event, "cname": _COLORS.get(kernel.kind, _OTHER_COLOR)}

    def _at(self, share: float) -> float:
        return round(share * self._unit, 3)


# ── counters ────────────────────────────────────────────────────────────────────────────────────


def _counters(
    course: Course, shown: Iterable[Phase], categories: Iterable[Category], axis: _Axis, process: int
) -> Iterator[Event]:
    """Yields the counter events of a Chrome trace: allocated and reserved bytes, and those by category.

    They come one counter after the other, each in order of time.

    Args:
        axis: function from the number of a memory event to its time on the trace's axis.
        process: number of the device's process in the trace.
    """
    counters = [("allocated", course.allocated), ("reserved", course.reserved)]
    counters += [(f"allocated: {category}", course.categories[category]) for category in categories]
    for name, column in counters:
        last = None
        for phase in shown:
            for position in range(phase.start, phase.stop):
                if column[position] != last:
                    last = column[position]
                    args = {"bytes": last}
                    yield {
                        "ph": "C",
                        "ts": axis(position),
                        "pid": process,
                        "tid": 0,
                        "name": name,
                        "args": args,
                    }
