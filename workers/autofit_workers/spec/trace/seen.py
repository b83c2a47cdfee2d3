"""Part of a run that a trace covers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Part of a script's or workload's run that a trace covers: its steps, loops and phases.

    Attributes:
        step_ends: positions in the events at which a step had ended, of the optimizer with the most steps,
            until the loops of a script were cut short.
        num_run_steps: number of steps of the whole run; None if its loops do not say.
        is_to_end: whether the code after the steps was run too, as far as the workload goes by itself.
        keepers: pairs of a line that allocates growing memory and the line that keeps it, if known.
        unseen: phases that its code names, or may have, but that were not seen: `evaluation`, `checkpoint`.
    """

    step_ends: tuple[int, ...] = ()
    num_run_steps: int | None = None
    is_to_end: bool = True
    keepers: tuple[tuple[str, str], ...] = ()
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Sizes of batches that differ from step to step.

    Attributes:
        starts: positions in the events at which a model was given each batch that was trained on.
        numbers: for each of these batches, the numbers in which batches differ.
        shapes: for each of them, and for the batches after them, the shape in which they differ.
        numbers_coming: numbers of the batches that the data loader gave and that were not trained on, in
            their order.
        is_read: whether a data loader gave them, so that all its batches are like these.
        is_shuffled: whether another epoch may have another order.
    """

    starts: tuple[int, ...]
    numbers: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    numbers_coming: tuple[tuple[int, ...], ...] = ()
    is_read: bool = True
    is_shuffled: bool = True
