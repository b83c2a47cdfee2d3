"""Describes which part of a script's run was traced, and whether its memory grows."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.predict.run_lengths import RunLengths
from autofit.predict.whole_run import LineGrowth, SeenPart
from autofit.units import format_bytes

_MOST_LENGTHS = 6  # lengths that a sentence lists one by one; of more it gives the range
_WORTHWHILE = 0.95  # share of the reserved bytes; allocator settings that leave less are mentioned


def short_source(source: str) -> str:
    """Line of code `file:line`, made from `folder/file:line:function`; empty for generated code."""
    path, _, _function = source.rpartition(":")
    return "" if source.startswith("<") else path.rsplit("/", 1)[-1]


def seen_part(seen: SeenPart | None) -> tuple[str, ...]:
    """Tuple with a sentence on which part of a script's run was traced: steps, lengths and phases.

    Args:
        seen: traced part of the run; None if unknown. The result is then empty, as it is if only the number
            of traced steps is known.
    """
    if seen is None or not (seen.run_steps or seen.unseen_phases or len(seen.phases) > 1):
        return ()
    steps = f"{seen.steps} step{'s'[: seen.steps != 1]}"
    of_run = "" if seen.run_steps is None else f" of {seen.run_steps:,}"
    said = f"{steps} {'was' if seen.steps == 1 else 'were'} seen{of_run}"
    if seen.steps == seen.run_steps:
        said = f"all of the run was seen, in {steps}"
    if seen.lengths:
        said += f", of lengths {_lengths(seen.lengths)}"
    if len(seen.phases) > 1:
        said += f", with {_named(seen.phases[1:])}"
    if seen.unseen_phases:
        is_one = len(seen.unseen_phases) == 1
        said += f"; {_named(seen.unseen_phases)} {'was' if is_one else 'were'} not reached"
    return (said,)


def lengths_in_words(lengths: RunLengths) -> str:
    """Clause on the memory of a run whose batches differ in length, and on settings that save some of it."""
    longest = " × ".join(map(str, lengths.longest))
    where = "batches of the data" if lengths.is_read else "batches that were seen, and longer ones may come"
    low, high = format_bytes(lengths.low_bytes), format_bytes(lengths.high_bytes)
    orders = "an order" if lengths.num_orders == 1 else f"{lengths.num_orders} orders"
    said = (
        f"batches differ in length: the longest, {longest}, is {lengths.num_longest} of "
        f"{lengths.num_known:,} {where}; in {orders} of {lengths.num_batches:,} batches "
        f"{low if low == high else f'{low} to {high}'} are reserved, as blocks of a length do not fit others"
    )
    if lengths.num_alloc_retries:
        said += f", and the allocator gives its cache back up to {lengths.num_alloc_retries} times"
    if lengths.expandable_bytes is not None and lengths.expandable_bytes < _WORTHWHILE * lengths.likely_bytes:
        saved = format_bytes(lengths.expandable_bytes)
        said += f"; with {lengths.allocator_variable}=expandable_segments:True they likely reserve {saved}"
    return said


def _lengths(lengths: Sequence[int]) -> str:
    if len(lengths) > _MOST_LENGTHS:
        return f"{min(lengths):,} to {max(lengths):,}"
    return ", ".join(map(str, lengths))


def growth_in_words(growth: Sequence[LineGrowth], seen: SeenPart | None, *, full: str = "the card") -> str:
    """Clause on memory that grows with each step of a run, the lines that keep it, and what to do.

    Args:
        growth: lines of the user's code that keep memory in each step; at least one.
        seen: traced part of the run; None if unknown.
        full: name of what is full in the end, `the card` or `the budget`.
    """
    num_bytes = sum(line.bytes_per_step for line in growth)
    first, more = short_source(growth[0].line), len(growth) - 1
    lines = first if not more else f"{first} and {more} more line{'s'[: more != 1]}"
    return (
        f"{format_bytes(num_bytes)} more is alive after each step, from {lines}"
        f"{_end(growth[0].full_step, num_bytes, seen, full)}; "
        "keep values of steps with .item() or .detach().cpu()"
    )


def _end(full_step: int | None, bytes_per_step: int, seen: SeenPart | None, full: str) -> str:
    """Clause on how a run ends whose memory grows: full at a step, or the last step and its added memory.

    Args:
        full_step: step at which memory is full; None if the run ends before, or if that is unknown.
        bytes_per_step: bytes by which live memory grows in each step.
        seen: traced part of the run; None if unknown. Without the run's number of steps and without
            `full_step`, the clause is empty.
        full: name of what is full, `the card` or `the budget`.
    """
    run_steps = None if seen is None else seen.run_steps
    if full_step is not None:
        of_run = "" if run_steps is None else f" of {run_steps:,}"
        return f": {full} is full at step {full_step:,}{of_run}"
    if seen is None or run_steps is None:
        return ""
    more = format_bytes(bytes_per_step * (run_steps - seen.steps))
    than_seen = f", with {more} more than was seen" if run_steps > seen.steps else ""
    return f": the run ends at step {run_steps:,}{than_seen}"


def _named(phases: Sequence[str]) -> str:
    """Phrase that joins names of phases, such as `an evaluation and a checkpoint`."""
    return " and ".join(f"{'an' if phase[0] in 'aeiou' else 'a'} {phase}" for phase in phases)
