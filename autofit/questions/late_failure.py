"""Predicts which batches of a dataset fit, and when in an epoch a too large batch would come."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

from autofit.predict.sizes.surface import PredictedSurface
from autofit.search.boundary import largest_fitting_batch, nearly_largest_batch
from autofit.search.curves import CachedCurve
from autofit.settings.goals import Batching
from autofit.settings.lengths import BatchLengths

_LARGER = (1.25, 1.5, 2.0, 3.0, 4.0)  # batch sizes that are checked, over the largest that always fits
_STEP = 64  # tokens between the checked lengths, as attention kernels round lengths up to multiples of 64
_CAP = 0.99  # share of the samples that are not longer than the length cap that is checked


@dataclass(frozen=True, slots=True, kw_only=True)
class LateFailure:
    """Probability that an epoch has a batch that does not fit, for one batch size.

    Attributes:
        typical_length: average length that shuffled batches are padded to; with other batching, that of the
            longest batch.
        longest_fitting: largest length to which a batch of this size may be padded so that it fits; None if
            no length fits.
        num_too_long: number of samples that are longer than `longest_fitting`.
        num_batches: number of batches in an epoch.
        probability: probability that an epoch has a batch that does not fit.
        median_batch: number of batches after which half of all epochs have met a batch that does not fit;
            None if more than half never meet one.
    """

    batch_size: int
    typical_length: int
    longest_fitting: int | None
    num_too_long: int
    num_batches: int
    probability: float
    median_batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsAnswer:
    """Largest batches of a dataset with samples of different lengths, in tokens.

    Attributes:
        batching: how samples are put together to batches, such as shuffled.
        longest, median_length, cap_length: longest, median and 99th percentile of the samples' lengths.
        by_batch: risks of several batch sizes, ascending. The first is the largest batch size that always
            fits, or 1 if no size does; the others are larger.
        capped_batch: largest batch size that always fits if samples are cut to `cap_length`; None if no size
            does.
    """

    batching: Batching
    num_samples: int
    longest: int
    median_length: int
    cap_length: int
    by_batch: tuple[LateFailure, ...]
    capped_batch: int | None


def of_lengths(
    lengths: BatchLengths,
    surface: PredictedSurface,
    *,
    largest_batch: int | None,
    max_batch: int,
    batching: Batching,
    budget_bytes: int,
) -> LengthsAnswer:
    """Predicts which batches of a dataset with samples of different lengths fit a budget.

    Args:
        lengths: lengths of the dataset's samples, and how batches are padded.
        surface: predicted peaks by batch size and sample length, for the knob setting of the training.
        largest_batch: largest batch that fits with the longest sample; None if none does.
        max_batch: largest batch size that is considered.
        budget_bytes: bytes that PyTorch's allocator may reserve.
    """
    cap = lengths.longest_of(_CAP)
    smallest = largest_batch or 1
    sizes = [smallest]
    larger = {math.ceil(smallest * factor) for factor in _LARGER}
    sizes += sorted(each for each in larger if each not in sizes and each <= lengths.num_samples)
    asked = sizes if batching is Batching.SHUFFLED or largest_batch is None else sizes[:1]
    rows = []
    for batch_size in asked:
        always_fits = largest_batch is not None and batch_size <= largest_batch
        longest = (
            lengths.worst(batch_size)
            if always_fits
            else _longest_fitting(lengths, surface, batch_size, budget_bytes)
        )
        rows.append(_failure(lengths, batch_size, longest, batching))
        if longest is None or longest < lengths.typical(batch_size):
            break  # most batches of larger sizes do not fit
    step = _step(lengths)
    padded = min(-(-cap // step) * step, lengths.worst(1))
    curve = CachedCurve.of(surface.curve(padded, 2))
    capped = largest_fitting_batch(curve, budget_bytes, max_batch=max_batch).largest_batch
    return LengthsAnswer(
        batching=batching,
        num_samples=lengths.num_samples,
        longest=lengths.lengths[-1],
        median_length=lengths.longest_of(0.5),
        cap_length=cap,
        by_batch=tuple(rows),
        capped_batch=capped,
    )


def _longest_fitting(
    lengths: BatchLengths, surface: PredictedSurface, batch_size: int, budget_bytes: int
) -> int | None:
    """Largest padded length at which a batch fits, shorter than the longest batch; None if none fits."""
    sizes = tuple(range(_step(lengths), lengths.worst(batch_size), _step(lengths)))
    if not sizes:
        return None
    return nearly_largest_batch(surface.along_sizes(batch_size), budget_bytes, sizes=sizes)


def _step(lengths: BatchLengths) -> int:
    """Distance in tokens between the sample lengths that are tried, chosen so that they share traces."""
    return math.lcm(lengths.multiple, _STEP)


def _failure(lengths: BatchLengths, batch_size: int, longest: int | None, batching: Batching) -> LateFailure:
    """Risk of a batch size: how likely, and after how many batches, an epoch has one that does not fit."""
    num_batches = math.ceil(lengths.num_samples / batch_size)
    limit = 0 if longest is None else longest

    def probability_by(batch: int) -> float:
        if batching is Batching.SHUFFLED:
            return lengths.probability_by(batch, batch_size, limit)
        return float(lengths.num_beyond(limit) > 0)  # the first batch has the longest sample

    median = bisect.bisect_left(range(1, num_batches + 1), 0.5, key=probability_by) + 1
    return LateFailure(
        batch_size=batch_size,
        typical_length=lengths.typical(batch_size)
        if batching is Batching.SHUFFLED
        else lengths.worst(batch_size),
        longest_fitting=longest,
        num_too_long=lengths.num_beyond(limit),
        num_batches=num_batches,
        probability=probability_by(num_batches),
        median_batch=median if median <= num_batches else None,
    )
