"""Which part of a run a trace is of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Which part of a run was traced.

    Attributes:
        step_ends: positions in the events at which a step had ended, of the optimizer that makes most, until
            the loops of a script were cut short.
        num_run_steps: how many the whole run makes; None where its loops do not say.
        is_to_end: whether what comes after the steps was run too, as far as the workload goes by itself.
        keepers: pairs of a line that allocates what grows and the line that keeps it, where that is known.
        unseen: phases that its code names, or may have, and that were not seen: `evaluation`, `checkpoint`.
    """

    step_ends: tuple[int, ...] = ()
    num_run_steps: int | None = None
    is_to_end: bool = True
    keepers: tuple[tuple[str, str], ...] = ()
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Batches that differ from step to step.

    Attributes:
        starts: positions in the events at which a model was given each of those that were trained on.
        numbers: of each of these, the numbers in which batches differ.
        shapes: of each, and of those that come after them, the shape in which they differ.
        numbers_coming: of those that the data loader gave and that were not trained on, in their order.
        is_read: whether a data loader gave them, so that all its batches are like these.
        is_shuffled: whether the order may be another one in another epoch.
    """

    starts: tuple[int, ...]
    numbers: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    numbers_coming: tuple[tuple[int, ...], ...] = ()
    is_read: bool = True
    is_shuffled: bool = True
