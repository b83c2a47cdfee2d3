"""Traced part of a run, and the memory that grows from step to step in the rest of the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autofit_workers.replay.curve.growth import LiveAfterSteps
from autofit_workers.spec.pythons import Self
from autofit_workers.spec.trace import Trace

_PHASES = ("evaluation", "generation", "checkpoint")  # besides training


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPart:
    """Part of a run that was traced and that a prediction covers.

    Attributes:
        steps: number of traced steps.
        run_steps: number of steps of the whole run; None where its loops do not tell.
        lengths: lengths of the traced batches where they differ: the differing dimension, or their elements.
        phases: names of the phases that were traced: `training` or `inference`, `evaluation`, `generation`,
            `checkpoint`.
        unseen_phases: phases that the script has, or may have, and that were not traced.
    """

    steps: int
    run_steps: int | None = None
    lengths: tuple[int, ...] = ()
    phases: tuple[str, ...] = ()
    unseen_phases: tuple[str, ...] = ()

    @classmethod
    def of(cls, trace: Trace, batch_size: int) -> Self | None:
        """Part of a run that a trace shows; None for a text generation, whose passes are no steps.

        Args:
            batch_size: batch size of the run; at another size than the trace's, the number of its steps is
                unknown.
        """
        seen = trace.seen
        if seen is None or not seen.step_ends:
            return None
        marked = {mark.name.rpartition(" ")[2] for mark in trace.marks}
        main = "training" if trace.mode == "train" else "inference"
        return cls(
            steps=len(seen.step_ends),
            run_steps=_run_steps(trace, batch_size),
            lengths=_lengths(trace),
            phases=(main, *(phase for phase in _PHASES if phase in marked)),
            unseen_phases=seen.unseen,
        )


def _lengths(trace: Trace) -> tuple[int, ...]:
    if trace.lengths is None:
        return ()
    return tuple(math.prod(numbers) for numbers in trace.lengths.numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineGrowth:
    """Source line that leaves more memory alive with each step of a run.

    Attributes:
        line: the user's line, `file:line:function`, that keeps the memory in a list or the like, or else that
            allocates it.
        bytes_per_step: bytes that the line keeps in a step on average.
        full_step: the step at which all growing memory fills the card, or in a check the budget; None where
            the run ends before, or no card is named.
    """

    line: str
    bytes_per_step: int
    full_step: int | None = None


def _run_steps(trace: Trace, batch_size: int) -> int | None:
    return None if trace.seen is None or trace.batch_size != batch_size else trace.seen.num_run_steps


def fills(growth: Sequence[LineGrowth]) -> bool:
    """Whether memory that grows from step to step fills the card before the run ends.

    Args:
        growth: growing lines; each has the step at which the card is full.
    """
    return full_step(growth) is not None


def full_step(growth: Sequence[LineGrowth]) -> int | None:
    """Step at which memory that grows from step to step fills the card or budget; None if it never does.

    Args:
        growth: growing lines, which all have this step.
    """
    return next((line.full_step for line in growth if line.full_step is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGrowth:
    """Growth of memory from step to step of a run.

    Attributes:
        lines: lines that keep memory in each step, the one that keeps the most first.
        peak_bytes_per_step: bytes by which a step's peak rises from step to step.
        seen_steps: number of traced steps.
        run_steps: number of steps of the whole run; None if it is not known.
    """

    lines: tuple[LineGrowth, ...] = ()
    peak_bytes_per_step: float = 0
    seen_steps: int = 0
    run_steps: int | None = None

    @classmethod
    def of(cls, trace: Trace, batch_size: int, sizes: Sequence[int]) -> Self:
        """Memory growth from step to step that a trace shows.

        Args:
            batch_size: batch size of the run; at another size than the trace's, the number of its steps is
                unknown.
            sizes: bytes of each allocation of the trace, at this batch size.
        """
        live = LiveAfterSteps.of(trace, sizes)
        found = live.growths
        if not found or trace.seen is None:
            return cls()
        keepers = dict(trace.seen.keepers)
        rates: Counter[str] = Counter()
        for each in found:
            rates[keepers.get(each.source, each.source)] += each.bytes_per_step
        return cls(
            lines=tuple(LineGrowth(line=line, bytes_per_step=rate) for line, rate in rates.most_common()),
            peak_bytes_per_step=live.peak_rise,
            seen_steps=len(trace.seen.step_ends),
            run_steps=_run_steps(trace, batch_size),
        )

    def full_step(self, reserved_bytes: int, usable_bytes: int) -> int | None:
        """First step of a run that needs more than `usable_bytes`; None if no step does.

        Args:
            reserved_bytes: reserved peak of the traced steps.
            usable_bytes: bytes that the allocator may reserve.
        """
        if self.peak_bytes_per_step <= 0:
            return None
        more = math.floor(max(usable_bytes - reserved_bytes, 0) / self.peak_bytes_per_step) + 1
        step = self.seen_steps + more
        return None if self.run_steps is not None and step > self.run_steps else step

    def within(self, reserved_bytes: int, usable_bytes: int) -> tuple[LineGrowth, ...]:
        """Source lines that keep memory, each with the step at which all of them fill `usable_bytes`."""
        step = self.full_step(reserved_bytes, usable_bytes)
        return tuple(replace(line, full_step=step) for line in self.lines)
