"""Part of a run that a trace covers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Part of a script's or workload's run that a trace covers: its steps, loops and phases.

    Attributes:
        step_ends: positions in the events at which steps of the optimizer with the most steps ended; steps
            after the script's loops were cut short are left out.
        num_run_steps: number of steps of the whole run; None if the script's loops do not tell it.
        is_to_end: whether the code after the steps was run too, up to where the workload ends by itself.
        keepers: pairs of a line that allocates growing memory and the line that keeps it alive, if known.
        unseen: phases that the code names, or may have, but that were not traced: `evaluation`, `checkpoint`.
        num_eager_graphs: number of graphs of `torch.compile` that were followed as eager code, as PyTorch's
            compiler failed on them or took too long.
    """

    step_ends: tuple[int, ...] = ()
    num_run_steps: int | None = None
    is_to_end: bool = True
    keepers: tuple[tuple[str, str], ...] = ()
    unseen: tuple[str, ...] = ()
    num_eager_graphs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Sizes of batches that differ from step to step, such as lengths of texts.

    Attributes:
        starts: for each batch that the model was trained on, the position in the events at which it was given
            to the model.
        numbers: for each of these batches, the numbers in which batches differ, such as the longest length.
        shapes: for each of these batches, and for the later ones of the data loader, the shape that differs.
        numbers_coming: the same numbers of batches that the data loader gave but that were not trained on, in
            their order.
        is_read: whether the lengths are from a data loader, whose other batches are like these.
        is_shuffled: whether another epoch may have another order of batches.
    """

    starts: tuple[int, ...]
    numbers: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    numbers_coming: tuple[tuple[int, ...], ...] = ()
    is_read: bool = True
    is_shuffled: bool = True
