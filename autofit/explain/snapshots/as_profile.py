"""A recorded run as a profile, for all views and exports of `autofit profile`.

A snapshot does not say what a block holds. Blocks of forward count as activations; of backward those that
stay until the optimizer runs as gradients; of the optimizer those that stay as its state. Phases are told
apart by lines: autograd's threads have none, and an optimizer's are in a file or function of such a name.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from autofit.explain.profile import Profile, profile_in, unreadable
from autofit.explain.recorded import Recorded
from autofit.explain.snapshots.run import BEFORE, Run, run_of
from autofit_workers.replay.snapshots.files import unpacked
from autofit_workers.replay.snapshots.frames import of_line
from autofit_workers.spec.documents import DocumentError, read_file
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.pickles import MOST_PICKLE_BYTES
from autofit_workers.spec.trace import Allocation, Category, Mark, Trace

_OPTIMIZER = re.compile(r"optim[^/:]*\.py:\d+:|:step$", re.IGNORECASE)
_CATEGORIES = {category.value: category for category in Category}
_ASSUMED = "sm_80"  # a snapshot does not say; nothing of a recorded profile is computed from it
_CARD = "the GPU of the run"
_NOT_RECORDED = "(not recorded)"
_NO_TIMES = "a snapshot has no times of operators"
FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


def open_profile(path: Path) -> Profile:
    """Profile in a file: one that was saved, or that of a memory snapshot.

    Raises:
        ProfileError, SnapshotError: the file cannot be read, or is neither; the message names it.
    """
    try:
        data = read_file(path, MOST_PICKLE_BYTES)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        file = unpacked(path.name, data, path)
    except DocumentError:  # a damaged profile is told of as one
        return profile_in(data, path)
    return profile_of(run_of(file)) if file.is_snapshot else profile_in(data, path)


def profile_of(run: Run) -> Profile:
    """Profile of a recorded run: its real blocks, segments and steps."""
    followed, marks = run.followed, tuple(_marks(run))
    starts = [mark.position for mark in marks]
    names = [mark.name.split()[-1] for mark in marks]
    phases = _phase_of_each(run, starts, names)
    allocations = tuple(
        _allocation(run, request, phases[request], starts, names) for request in range(len(phases))
    )
    trace = Trace(
        workload=run.snapshot.name,
        batch_size=0,
        mode="train" if OPTIMIZER in names or BACKWARD in names else "infer",
        optimizer="",
        knobs=Knobs(),
        allocations=allocations,
        events=tuple(followed.events),
        marks=marks,
        notes=("recorded by a real run",),
    )
    return Profile(
        trace=trace,
        knobs=trace.knobs,
        card=_CARD,
        architecture=_ASSUMED,
        requested_bytes=tuple(followed.requested_bytes),
        block_bytes=tuple(followed.block_bytes),
        context_bytes=0,
        peak_allocated_bytes=followed.peak_allocated_bytes,
        peak_reserved_bytes=followed.peak_reserved_bytes,
        workspace_source="recorded",
        time_note=_NO_TIMES,
        recorded=Recorded(actions=tuple(followed.actions), is_exact=followed.is_exact),
    )


def is_of_optimizer(where: str) -> bool:
    """Whether a line `file:line:function` is of an optimizer, by the name of its file or function."""
    return _OPTIMIZER.search(where) is not None


def _phase_of_each(run: Run, starts: Sequence[int], names: Sequence[str]) -> list[str]:
    """Name of the phase in which each request was made."""
    found, place = [], 0
    for request in range(len(run.births)):
        while place + 1 < len(starts) and starts[place + 1] <= run.births[request]:
            place += 1
        found.append(names[place])
    return found


def _allocation(
    run: Run, request: int, phase: str, starts: Sequence[int], names: Sequence[str]
) -> Allocation:
    source = run.followed.sources[request]
    stack = source.stack or ((of_line(source.where),) if source.where else ())
    return Allocation(
        num_bytes=run.followed.requested_bytes[request],
        category=_CATEGORIES.get(source.category) or _category(run, request, phase, starts, names),
        operator=source.operator or (_NOT_RECORDED if phase != "model" else BEFORE),
        module=source.module,
        source=source.where,
        stack=stack,
        stream=max(source.stream, 0),
    )


def _category(run: Run, request: int, phase: str, starts: Sequence[int], names: Sequence[str]) -> Category:
    death = run.deaths[request]
    if phase == FORWARD:
        return Category.ACTIVATION
    if phase == BACKWARD:
        number = bisect_right(starts, run.births[request])
        is_kept = number < len(starts) and names[number] == OPTIMIZER and death >= starts[number]
        return Category.GRADIENT if is_kept or death == run.num_events else Category.OTHER
    if phase == OPTIMIZER and death == run.num_events:
        return Category.OPTIMIZER_STATE
    return Category.OTHER


def _marks(run: Run) -> Iterator[Mark]:
    """Yields the marks of phases: `model` for what was there before, then those of each step."""
    yield Mark(position=0, name="model")
    starts = [start for start in run.starts if start < run.num_events] or [run.followed.num_before]
    requests = [event for event in run.followed.events if event >= 0]
    for number, (start, stop) in enumerate(itertools.pairwise((*starts, run.num_events)), 1):
        inside = list(_between(run, requests, start, stop))
        yield Mark(position=start, name=f"step {number} {FORWARD}")
        for phase, position in phases_of(run, inside):
            yield Mark(position=position, name=f"step {number} {phase}")


def _between(run: Run, requests: Sequence[int], start: int, stop: int) -> Iterator[int]:
    first = bisect_left(requests, start, key=lambda each: run.births[each])
    for request in requests[first:]:
        if run.births[request] >= stop:
            return
        yield request


def phases_of(run: Run, requests: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Yields backward and optimizer of a step, each with the position where it begins.

    Args:
        requests: those of the step, in order.
    """
    sources = run.followed.sources
    is_optimizer = [is_of_optimizer(sources[each].where) for each in requests]
    until = next((n for n, is_of in enumerate(is_optimizer) if is_of), len(requests))
    if not any(sources[each].where for each in requests):
        return
    # Backward begins where most requests before have lines, and most after it have none.
    best, split, balance = 0, until, 0
    for number in range(until - 1, -1, -1):
        source = sources[requests[number]]
        balance += 1 if source.is_backward or not source.where else -1
        if balance > best:
            best, split = balance, number
    if split < until:
        yield BACKWARD, run.births[requests[split]]
    if until < len(requests):
        yield OPTIMIZER, run.births[requests[until]]
