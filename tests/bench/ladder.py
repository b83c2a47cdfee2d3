"""Batch sizes that one process tries in turn, largest first, and what the tries that fail leave behind.

timm's `benchmark.py` (`_try_run`) gives the cache back before it tries again, but the runner of the try
that failed lives on until the next one has its model: with its own model and its input. What is smaller is
then cut from their segments. And the workspaces of cuBLAS stay for good, each in the midst of the segment
that it was cut from.
"""

from __future__ import annotations

from collections.abc import Callable

from workers.allocator import Choice, replay
from workers.predict.conditions import Conditions, Level
from workers.predict.curve import PeakCurve
from workers.predict.plans import PlanSource
from workers.trace import Category, Trace

# `decay_batch_step` of timm: by a quarter, then by a third.
_STEPS = (2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
# Of what a step makes, that belongs to the runner.
_HELD = frozenset((Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.INPUT))
# Asks for nothing, and finds a plan that takes nothing: all that is cached is given back.
_EMPTY_CACHE = Choice(asker=-1, sizes=(0,), found=(0,))


def steps_down(first: int, last: int) -> tuple[int, ...]:
    """The sizes that are tried from the first to the last."""
    return tuple(step for step in _STEPS if last <= step <= first)


def runs_in_turn(
    curve_at: Callable[[int], PeakCurve],
    batch_sizes: tuple[int, ...],
    conditions: Conditions,
    limit_bytes: int,
) -> dict[int, bool]:
    """Whether each size likely runs, after all before it were tried in the same process.

    What PyTorch refuses is left out, as if it left nothing behind.

    Args:
        curve_at: the curve that knows a size.
    """
    by_source = [
        _runs_by(source, curve_at, batch_sizes, conditions, limit_bytes) for source in conditions.sources
    ]
    return {
        batch_size: Level.LIKELY.settles(runs[batch_size] for runs in by_source) for batch_size in batch_sizes
    }


def _runs_by(
    source: PlanSource,
    curve_at: Callable[[int], PeakCurve],
    batch_sizes: tuple[int, ...],
    conditions: Conditions,
    limit_bytes: int,
) -> dict[int, bool]:
    process = _Process(conditions, limit_bytes)
    runs = {}
    for batch_size in batch_sizes:
        curve = curve_at(batch_size)
        refused = curve.refusal(batch_size, conditions) is not None
        runs[batch_size] = not refused and process.tries(curve, batch_size, source)
    return runs


class _Process:
    """All that a process asks its allocator for: the requests of every try, in one numbering."""

    def __init__(self, conditions: Conditions, limit_bytes: int) -> None:
        self._conditions = conditions
        self._limit_bytes = limit_bytes
        self._events: list[int] = []
        self._sizes: list[int] = []
        self._choices: dict[int, Choice] = {}
        self._runner: list[int] = []  # what the last one holds
        self._num_handles = 0  # of cuBLAS that have their workspace

    def tries(self, curve: PeakCurve, batch_size: int, source: PlanSource) -> bool:
        """Whether a size runs now; what that leaves behind is there for the next one."""
        sizes, choices = curve.requests(batch_size, self._conditions, source)
        trace, start, emptied = curve.trace, len(self._sizes), len(self._sizes) + len(sizes)
        self._sizes += [*sizes, 0]
        self._choices[emptied] = _EMPTY_CACHE
        self._choices |= {
            start + index: choice._replace(asker=start + choice.asker) for index, choice in choices.items()
        }
        position = {mark.name: mark.position for mark in trace.marks}
        with_model, with_input = position["step 1 input"], position["step 1 forward"]
        events = [event + start if event >= 0 else event - start for event in trace.events]
        handles = [start + index for index in _handles(trace)]
        there = handles[: self._num_handles]
        held = {
            start + index
            for index, allocation in enumerate(trace.allocations)
            if allocation.category in _HELD
        }
        tried = [emptied, ~emptied, *events[:with_model]]
        tried += [~index for index in self._runner]  # the new one takes its place
        tried += events[with_model:with_input]
        held.update(tried)
        tried += [event for event in events[with_input:] if event not in there]

        result = replay(
            [*self._events, *tried],
            self._sizes,
            settings=self._conditions.settings,
            limit_bytes=self._limit_bytes,
            choices=self._choices,
        )
        if result.failed_position is not None:
            failed = result.failed_position - len(self._events)
            # What fails at its end is the plan that was found in a room, which was asked for just before.
            del tried[failed if tried[failed] >= 0 else failed - 1 :]
        freed = {~event for event in tried if event < 0}
        alive = [index for index in (*self._runner, *tried) if index >= 0 and index not in freed]
        held.update(self._runner)
        self._num_handles += len(set(alive) & set(handles))
        self._runner = [index for index in alive if index in held]
        self._events += tried
        self._events += [~index for index in alive if index not in held and index not in handles]
        return result.completed


def _handles(trace: Trace) -> list[int]:
    """The workspaces that a thread's handle of cuBLAS takes once and keeps, in their order."""
    freed = {~event for event in trace.events if event < 0}
    return [
        event
        for event in trace.events
        if event >= 0 and event not in freed and trace.allocations[event].correction == "cublas"
    ]
