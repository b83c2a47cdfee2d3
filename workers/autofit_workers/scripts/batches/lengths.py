"""Learns the sequence lengths of a script's batches, if they differ from step to step.

    trained on              64 × 311   64 × 87   64 × 902     steps that are traced
    coming from the loader  64 × 95    64 × 411  64 × 128 …   read on the CPU, without training on them

The memory of a step is taken for a function of the dimensions that differ between batches. If more
of them differ than a few steps can tell apart, it is taken for a function of the number of elements.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from autofit_workers.scripts.batches.loaders import LoadedBatch
from autofit_workers.scripts.batches.size import Batches, Pass
from autofit_workers.spec.trace import Lengths

_Shapes = tuple[tuple[int, ...], ...]

_MOST_SECONDS = 4.0  # of reading batches
_GLANCE_SECONDS = 0.4  # of reading batches if those that were trained on are alike
_MOST_BATCHES = 2000
_MOST_NUMBERS = 2  # dimensions that differ and that a few steps can tell apart
# Number of steps by the number of such dimensions: enough for three coefficients of a number and its square
# or six of two numbers, and some more to check them.
_NUM_STEPS = {1: 8, 2: 12}
_NUM_DRAWN = 48  # steps that are traced if no loader gives further batches


class LengthWatch:
    """Learns from a script's batches how sequence lengths vary between batches.

    Args:
        batches: the batches seen so far in this run of the script.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def wants_more(self, num_steps: int) -> bool:
        """Whether more than `num_steps` steps are needed to learn the batches' lengths."""
        passes = self._batches.trained_passes
        numbers = _differing([_shapes_of(each) for each in _whole(passes)])
        if not numbers:
            return False
        has_loader = passes[-1].batch is not None
        return num_steps < (_NUM_STEPS[len(numbers[0])] if has_loader else _NUM_DRAWN)

    def lengths(self) -> Lengths | None:
        """Batch lengths of the run, once the script has made its steps; None if all shapes are equal."""
        passes = self._batches.trained_passes
        shapes = [_shapes_of(each) for each in passes]
        whole = [_shapes_of(each) for each in _whole(passes)]
        coming = list(self._coming(are_alike=len(set(whole)) == 1)) if shapes else []
        if not _differing([*whole, *coming]):
            return None
        numbers = _differing([*shapes, *coming])
        last = passes[-1].batch
        return Lengths(
            starts=tuple(each.position for each in passes),
            numbers=tuple(numbers[: len(passes)]),
            shapes=_largest_differing([*shapes, *coming]),
            numbers_coming=tuple(numbers[len(passes) :]),
            is_read=last is not None,
            is_shuffled=last is None or last.is_shuffled,
        )

    def _coming(self, *, are_alike: bool) -> Iterator[_Shapes]:
        last = _whole(self._batches.trained_passes)[-1].batch
        if last is None:
            return
        until = time.monotonic() + (_GLANCE_SECONDS if are_alike else _MOST_SECONDS)
        in_time = takewhile(lambda _: time.monotonic() < until, self._batches.coming())
        for _, batch in zip(range(_MOST_BATCHES), _unless_it_fails(in_time), strict=False):
            if batch.num_collated == last.num_collated:  # the last batch of an epoch may have fewer samples
                yield batch.shapes


def _unless_it_fails(coming: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
    """Yields batches until the user's data set raises, as it may once the script has ended."""
    while True:
        try:
            batch = next(coming, None)
        except Exception:  # noqa: BLE001 - any that a data set raises; what was read until then is known
            return
        if batch is None:
            return
        yield batch


def _whole(passes: Sequence[Pass]) -> list[Pass]:
    """Forward passes with the most frequent number of samples, as an epoch's last batch may have fewer."""
    counts = [None if each.batch is None else each.batch.num_collated for each in passes]
    usual = max(counts, key=counts.count, default=None)
    return [each for each, count in zip(passes, counts, strict=True) if count == usual]


def _shapes_of(each: Pass) -> _Shapes:
    return tuple(each.shapes) if each.batch is None else each.batch.shapes


def _differing(batches: Sequence[_Shapes]) -> list[tuple[int, ...]]:
    """Numbers by which batches differ: for each batch, a tuple of the dimensions that vary between batches.

    If more dimensions vary than can be followed, the tuple has the number of elements instead. The list is
    empty if all batches have equal shapes.
    """
    if len(set(batches)) < 2:
        return []
    rows = [[dimension for shape in shapes for dimension in shape] for shapes in batches]
    if len({tuple(map(len, shapes)) for shapes in batches}) == 1:
        columns = list(dict.fromkeys(zip(*rows, strict=True)))
        columns = _independent([column for column in columns if len(set(column)) > 1])
        if len(columns) <= _MOST_NUMBERS:
            return list(zip(*columns, strict=True))
    return [(sum(map(math.prod, shapes)),) for shapes in batches]


def _independent(columns: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Columns of numbers, without those that equal another plus a constant, as shifted targets do."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for column in columns:
        found.setdefault(tuple(value - column[0] for value in column), column)
    return list(found.values())


def _largest_differing(batches: Sequence[_Shapes]) -> tuple[tuple[int, ...], ...]:
    """Shape, for each batch, of the largest tensor whose shape varies between batches."""
    if len({len(shapes) for shapes in batches}) > 1:
        return tuple((sum(map(math.prod, shapes)),) for shapes in batches)
    tensors = [tensor for tensor in zip(*batches, strict=True) if len(set(tensor)) > 1]
    return max(tensors, key=lambda tensor: sum(map(math.prod, tensor)))
