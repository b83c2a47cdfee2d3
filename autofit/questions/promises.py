"""Estimates from one trace how much memory changes may save, to choose which to try first.

A step peaks in its forward and backward passes or in its optimizer step, each of which takes a sum:

    passes      weights + states + activations (+ gradients, if batches are accumulated)
    optimizer   weights + states + gradients + temporaries

A change scales one of the terms by about a known share: activation checkpointing the activations, another
optimizer its states. The peak with several changes is the higher of the two changed sums. The estimates only
order the candidates; a change is advised after a prediction from a trace of its own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.questions.levers import Lever, gentleness, in_order
from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import KNOBS, Knobs, Part
from autofit_workers.spec.knobs.optimizer import NAMED
from autofit_workers.spec.setup import ALONE
from autofit_workers.spec.trace import Category, Trace
from autofit_workers.spec.trace.parts import last_step
from autofit_workers.spec.workloads.loop_parts import require_loop

_MOST_TOGETHER = 3  # changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Memory of a step by purpose, such as weights and activations, in bytes, each at its own maximum.

    Attributes:
        kept_gradients: part of the gradients that is alive when activations are at their peak: the
            accumulated gradients of earlier batches.
    """

    weights: float
    gradients: float
    states: float
    activations: float
    temporaries: float
    kept_gradients: float

    @property
    def peak_bytes(self) -> float:
        """Estimated peak of the step in bytes: the higher of that of the passes and that of the optimizer."""
        passes = self.activations + self.kept_gradients
        return self.weights + self.states + max(passes, self.gradients + self.temporaries)


def parts_of(trace: Trace) -> Parts:
    """Memory of a trace's last step by purpose; sizes that only a replay on a card gives count 0 bytes."""
    alive: Counter[Category] = Counter()
    start, end = last_step(trace.marks, len(trace.events))
    positions = {mark.position: mark.name.rpartition(" ")[2] for mark in trace.marks}
    lasting = Category.PARAMETER, Category.OPTIMIZER_STATE, Category.GRADIENT
    largest: Counter[Category] = Counter()
    activations = temporaries = kept = 0
    phase = ""
    for position, event in enumerate(trace.events[:end]):
        phase = positions.get(position, phase)
        allocation = trace.allocations[event if event >= 0 else ~event]
        alive[allocation.category] += allocation.num_bytes if event >= 0 else -allocation.num_bytes
        if position < start:
            continue
        for category in lasting:
            largest[category] = max(largest[category], alive[category])
        passing = sum(alive.values()) - sum(alive[category] for category in lasting)
        if phase == "optimizer":
            temporaries = max(temporaries, passing)
        elif passing > activations:
            activations, kept = passing, alive[Category.GRADIENT]
    return Parts(
        weights=largest[Category.PARAMETER],
        gradients=largest[Category.GRADIENT],
        states=largest[Category.OPTIMIZER_STATE],
        activations=activations,
        temporaries=temporaries,
        kept_gradients=kept,
    )


class Promises:
    """Estimates a configuration's peak after changes, from one trace of the unchanged configuration.

    Args:
        trace: trace of the unchanged configuration.
        batch_size: batch size of the trace.
    """

    def __init__(self, trace: Trace, knobs: Knobs, batch_size: int) -> None:
        self._knobs = knobs
        self._batch_size = batch_size
        self._mode = trace.mode
        self._parts = parts_of(trace)
        self._size = knobs.seq_len or (None if trace.sample is None else trace.sample.size)

    def names(self, lever: Lever) -> frozenset[str]:
        """Names of the knobs that a change sets; two changes that set the same knob exclude each other."""
        return frozenset({lever.name, *lever.changed(self._knobs)})

    def go_together(self, changes: Sequence[Lever]) -> bool:
        """Whether changes set different knobs, and all of them are allowed in one training loop."""
        names = [name for lever in changes for name in self.names(lever)]
        if len(names) > len(set(names)):
            return False
        values = {name: value for lever in changes for name, value in lever.changed(self._knobs).items()}
        try:
            require_loop(dataclasses.replace(self._knobs, **values), ALONE, mode=self._mode, has_step=False)
        except InapplicableError:
            return False
        return True

    def share(self, changes: Iterable[Lever], *, num_shards: int = 1, batch_share: float = 1.0) -> float:
        """Estimated peak with all of `changes`, as a share of the unchanged configuration's peak.

        Args:
            num_shards: number of ranks that share weights, gradients and optimizer states, a part each.
            batch_share: share of the batch that one rank has.
        """
        changes = tuple(changes)
        values = {name: value for lever in changes for name, value in lever.changed(self._knobs).items()}
        parts = self._parts
        if (optimizer := values.get("optimizer")) is not None:
            parts = dataclasses.replace(parts, states=parts.gradients * NAMED[optimizer].states)
        for name, value in values.items():
            parts = self._with(parts, name, value)
        for lever in changes:
            if lever.batch_size is not None:
                parts = self._in_batches(parts, lever)
        parts = _sharded(parts, num_shards, batch_share)
        return parts.peak_bytes / self._parts.peak_bytes if self._parts.peak_bytes else 1.0

    def _with(self, parts: Parts, name: str, value: Any) -> Parts:
        """Copy of `parts`, the memory of a step by purpose, as it is after one knob is set to a value."""
        if name == "seq_len" and self._size:
            return dataclasses.replace(parts, activations=parts.activations * value / self._size)
        leaves = KNOBS[name].leaves
        if leaves is None:
            return parts
        before, after = leaves(getattr(self._knobs, name)), leaves(value)
        left = {part: after.get(part, 1.0) / (before.get(part, 1.0) or 1.0) for part in Part}
        scaled = {part.value: getattr(parts, part) * left[part] for part in Part}
        kept = parts.kept_gradients * left[Part.GRADIENTS]
        return dataclasses.replace(parts, **scaled, kept_gradients=kept)

    def _in_batches(self, parts: Parts, lever: Lever) -> Parts:
        assert lever.batch_size is not None
        return dataclasses.replace(
            parts,
            activations=parts.activations * lever.batch_size / self._batch_size,
            kept_gradients=parts.gradients if lever.knobs.accumulates else parts.kept_gradients,
        )


def _sharded(parts: Parts, num_shards: int, batch_share: float) -> Parts:
    return Parts(
        weights=parts.weights / num_shards,
        gradients=parts.gradients / num_shards,
        states=parts.states / num_shards,
        activations=parts.activations * batch_share,
        temporaries=parts.temporaries / num_shards,
        kept_gradients=parts.kept_gradients / num_shards,
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """Combination of changes, with its estimated peak.

    Attributes:
        share: ratio of the estimated peak with the changes to the peak without them.
    """

    changes: tuple[Lever, ...]
    share: float


def candidates(levers: Sequence[Lever], promises: Promises) -> list[Candidate]:
    """Combinations of up to three changes that do not exclude each other, the mildest first."""
    saving = [lever for lever in levers if promises.share([lever]) < 1]
    found = [
        Candidate(in_order(*changes), promises.share(changes))
        for number in range(1, _MOST_TOGETHER + 1)
        for changes in itertools.combinations(saving, number)
        if promises.go_together(changes)
    ]
    return sorted(found, key=lambda candidate: gentleness(candidate.changes))


def minimal(among: Iterable[Candidate], enough: float) -> list[Candidate]:
    """Combinations whose estimated peak is at most `enough` times the peak without changes.

    A combination that contains all changes of an earlier one is left out.
    """
    found: list[Candidate] = []
    for candidate in among:
        if candidate.share <= enough and not any(
            set(other.changes) < set(candidate.changes) for other in found
        ):
            found.append(candidate)
    return found
