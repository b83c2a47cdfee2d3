"""Batch sizes that one process tries in turn, largest first, and what the tries that fail leave behind.

timm's `benchmark.py` (`_try_run`) gives the cache back before it tries again, but the runner of the try
that failed lives on until the next one has its model: with its own model and its input. What is smaller is
then cut from their segments. And the workspaces of cuBLAS stay, up to PyTorch 2.14 for good, each in the
midst of the segment that it was cut from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from autofit_workers.replay.allocator import Choice, replay
from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.planned_step import PlannedStep, Requests
from autofit_workers.replay.curve.sized_step import SizedStep
from autofit_workers.replay.curve.step_on_card import StepOnCard
from autofit_workers.replay.plans.plan import PlanSource
from autofit_workers.spec.trace import Category, Trace

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
    step_at: Callable[[int], SizedStep],
    batch_sizes: tuple[int, ...],
    conditions: Conditions,
    limit_bytes: int,
) -> dict[int, bool]:
    """Whether each size likely runs, after all before it were tried in the same process.

    Args:
        step_at: the step at a size.
    """
    by_source = [
        _runs_by(source, step_at, batch_sizes, conditions, limit_bytes) for source in conditions.sources
    ]
    return {
        batch_size: Level.LIKELY.settles(runs[batch_size] for runs in by_source) for batch_size in batch_sizes
    }


def _runs_by(
    source: PlanSource,
    step_at: Callable[[int], SizedStep],
    batch_sizes: tuple[int, ...],
    conditions: Conditions,
    limit_bytes: int,
) -> dict[int, bool]:
    process = _Process(conditions, limit_bytes)
    return {batch_size: process.tries(step_at(batch_size), source) for batch_size in batch_sizes}


class _Process:
    """All that a process asks its allocator for: the requests of every try, in one numbering."""

    def __init__(self, conditions: Conditions, limit_bytes: int) -> None:
        self._conditions = conditions
        self._limit_bytes = limit_bytes
        self._events: list[int] = []
        self._sizes: list[int] = []
        self._choices: dict[int, Choice] = {}
        self._held: list[int] = []  # by the last runner
        self._num_handles = 0  # of cuBLAS that have their workspace

    def tries(self, step: SizedStep, source: PlanSource) -> bool:
        """Whether a size runs now; what that leaves behind is there for the next one."""
        runner = _Runner.of(step.trace, first=len(self._sizes) + 1)
        emptied = self._append(PlannedStep(step, self._conditions, source).requests())
        refusal = StepOnCard(step, self._conditions).refusal()
        there = runner.handles[: self._num_handles]
        steps = [event for event in runner.steps if event not in there]
        tried = [
            *(emptied, ~emptied),
            *runner.model,
            *(~index for index in self._held),
            *runner.own_input,
            *(steps if refusal is None else steps[: steps.index(runner.first + refusal.allocation)]),
        ]
        result = replay(
            [*self._events, *tried],
            self._sizes,
            settings=self._conditions.settings,
            limit_bytes=self._limit_bytes,
            choices=self._choices,
        )
        if result.failed_position is not None:
            failed = result.failed_position - len(self._events)
            if tried[failed] < 0:  # at its end a room fails for the plan that was found in it
                failed -= 1
                assert tried[failed] == ~tried[failed + 1], "a room is given back at once"
            del tried[failed:]
        freed = {~event for event in tried if event < 0}
        alive = [index for index in (*self._held, *tried) if index >= 0 and index not in freed]
        held = runner.held.union(self._held)
        self._held = [index for index in alive if index in held]
        self._num_handles += len(set(alive).intersection(runner.handles))
        self._events += tried
        self._events += [~index for index in alive if index not in held and index not in runner.handles]
        return result.completed and refusal is None

    def _append(self, requests: Requests) -> int:
        """Adds what gives the cache back, whose number is returned, and the requests of a try."""
        emptied = len(self._sizes)
        first = emptied + 1
        self._sizes += [0, *requests.sizes]
        self._choices[emptied] = _EMPTY_CACHE
        for index, choice in requests.choices.items():
            self._choices[first + index] = choice._replace(asker=first + choice.asker)
        return emptied


class _Runner(NamedTuple):
    """What runs one size, in the numbering of its process.

    Attributes:
        first: the number of its first allocation.
        model, own_input, steps: the events that make the model, those that make its input, and the rest.
        held: the numbers of what belongs to it, as long as it lives.
        handles: of the workspaces that the handles of threads take once and keep, in their order.
    """

    first: int
    model: list[int]
    own_input: list[int]
    steps: list[int]
    held: set[int]
    handles: list[int]

    @classmethod
    def of(cls, trace: Trace, first: int) -> _Runner:
        """That of a trace whose first allocation has this number."""
        events = [event + first if event >= 0 else event - first for event in trace.events]
        position = {mark.name: mark.position for mark in trace.marks}
        with_model, with_input = position["step 1 input"], position["step 1 forward"]
        freed = {~event for event in events if event < 0}
        held, handles = {event for event in events[:with_input] if event >= 0}, []
        for index, allocation in enumerate(trace.allocations, start=first):
            if allocation.category in _HELD:
                held.add(index)
            elif allocation.correction == "cublas" and index not in freed:
                handles.append(index)
        parts = events[:with_model], events[with_model:with_input], events[with_input:]
        return cls(first, *parts, held, handles)
