"""Padded lengths of batches of variable-length samples, in the worst and in the typical case."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

from autofit.errors import UsageError, did_you_mean
from autofit_workers.spec.setup import TYPICAL, WORST

_KINDS = (TYPICAL, WORST)
_PROGRESS_SAMPLES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLengths:
    """Lengths of a dataset's samples, and of batches that are padded to their longest sample.

    Made by `worst_case_lengths`. Lengths are in the dataset's own unit: tokens, frames, points.

    Attributes:
        lengths: the different lengths that occur, ascending.
        num_up_to: for each of these lengths, the number of samples that are not longer.
        num_left_out: the number of samples that the quantile left out; all are at least as long as the
            longest here.
        multiple: batches are padded to a multiple of this.
    """

    lengths: tuple[int, ...]
    num_up_to: tuple[int, ...]
    num_left_out: int = 0
    multiple: int = 1

    @property
    def num_samples(self) -> int:
        """Number of samples that batches are made of; those that the quantile left out do not count."""
        return self.num_up_to[-1]

    def worst(self, batch_size: int) -> int:
        """Padded length of a batch that contains the dataset's longest sample.

        It is the same for every batch size. Such a batch occurs in every epoch, and has `batch_size`
        times this length.

        Raises:
            UsageError: the batch size is below 1.
        """
        _require_batch_size(batch_size)
        return self._padded(self.lengths[-1])

    def typical(self, batch_size: int) -> int:
        """Average padded length of a batch of `batch_size` samples in a shuffled epoch.

        It is the expected maximum of draws without replacement, from the order statistics of the lengths
        (David and Nagaraja 2003, Order Statistics, section 3.7): no random numbers, and the same answer
        every time. A batch larger than the dataset holds all of it.

        Raises:
            UsageError: the batch size is below 1.
        """
        _require_batch_size(batch_size)
        num_drawn = min(batch_size, self.num_samples)
        within = [_share_within(count, self.num_samples, num_drawn) for count in self.num_up_to]
        shares = (upper - lower for lower, upper in itertools.pairwise([0.0, *within]))
        expected = math.fsum(length * share for length, share in zip(self.lengths, shares, strict=True))
        return self._padded(math.ceil(round(expected, 6)))  # before a rounding error adds one

    def longest_of(self, share: float) -> int:
        """Shortest length that at least a share of the samples does not exceed: for 0.5 the median.

        Args:
            share: share of the samples, above 0 and up to 1.
        """
        rank = max(1, math.ceil(share * self.num_samples - 1e-9))
        return self.lengths[bisect.bisect_left(self.num_up_to, rank)]

    def num_beyond(self, length: int) -> int:
        """Number of samples whose length, padded to the multiple, is more than `length`."""
        place = bisect.bisect_right(self.lengths, length // self.multiple * self.multiple)
        return self.num_samples - (self.num_up_to[place - 1] if place else 0)

    def probability_by(self, batch: int, batch_size: int, length: int) -> float:
        """Probability that one of an epoch's first batches is padded to more than `length`.

        The epoch is shuffled. The probability is exact: samples are drawn without replacement.

        Args:
            batch: number of first batches that count.
            batch_size: samples of each batch; the last batch of an epoch may be smaller.
            length: length in the dataset's unit, such as tokens.
        """
        num_drawn = min(batch * batch_size, self.num_samples)
        return 1.0 - _share_within(self.num_samples - self.num_beyond(length), self.num_samples, num_drawn)

    def capped(self, length: int) -> BatchLengths:
        """Lengths of the dataset after longer samples are cut to `length`."""
        kept = bisect.bisect_left(self.lengths, length)
        if kept == len(self.lengths):
            return self
        return dataclasses.replace(
            self, lengths=(*self.lengths[:kept], length), num_up_to=(*self.num_up_to[:kept], self.num_samples)
        )

    def of(self, kind: str, batch_size: int) -> int:
        """Padded length of a batch of the given `kind`, typical or worst, for use in a `make_batch`.

        Args:
            kind: `"worst"` for a batch with the longest sample, `"typical"` for the average batch.
            batch_size: samples of the batch.

        Raises:
            UsageError: there is no such kind, or the batch size is below 1.
        """
        if kind not in _KINDS:
            raise UsageError(
                f"kind must be one of {', '.join(_KINDS)}; got {kind!r}.{did_you_mean(str(kind), _KINDS)}"
            )
        return self.worst(batch_size) if kind == WORST else self.typical(batch_size)

    def _padded(self, length: int) -> int:
        return -(-length // self.multiple) * self.multiple


def worst_case_lengths(
    dataset: Iterable[Any],
    *,
    length: Callable[[Any], int] | None = None,
    quantile: float = 1.0,
    multiple: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> BatchLengths:
    """Reads the lengths of a dataset's samples, for a `make_batch` of typical and of worst batches.

        >>> import autofit
        >>> lengths = autofit.worst_case_lengths([12, 7, 7, 9, 31, 8, 10, 11])
        >>> lengths.worst(4), lengths.typical(4)
        (31, 22)
        >>> lengths.typical(1), lengths.typical(8)
        (12, 31)

    The longest of four of these eight samples is 22 on average (rounded up), and 31 at worst. A workload (the
    model and batches that autofit runs) pads its batches to these lengths:

        >>> def make_batch(batch_size, device, *, kind="typical"):
        ...     num_tokens = lengths.of(kind, batch_size)
        ...     return torch.randint(50_000, (batch_size, num_tokens), device=device)

    autofit imports the workload's file again for each run. If reading the dataset takes long, read it once,
    and write the lengths into the file. The dataset is read once, from its beginning, and no sample is kept.
    For a dataset of Hugging Face pass its column `dataset["input_ids"]`, or the dataset with
    `length=lambda sample: len(sample["input_ids"])`.

    Args:
        dataset: samples, or their lengths: any finite iterable, or anything with `__len__` and
            `__getitem__`.
        length: a function from a sample to its length. By default a number is its own length, and a list
            or tensor has the length of its first dimension.
        quantile: the share of the samples that is kept, above 0 and up to 1, the shortest first: 0.99
            drops the longest one percent.
        multiple: batches are padded to a multiple of this, as collators do for tensor cores.
        on_progress: called after every ten thousand samples with the number that were read.

    Returns:
        The lengths; `worst(batch_size)` and `typical(batch_size)` give the length of a batch.

    Raises:
        UsageError: the dataset is empty, a length is not a whole number of 0 or more, or an argument is
            out of range.
    """
    if not 0 < quantile <= 1:
        raise UsageError(f"quantile must be above 0 and up to 1; got {quantile}")
    if multiple < 1:
        raise UsageError(f"multiple must be a whole number, 1 or more; got {multiple}")
    measure = _own_length if length is None else length
    counts: Counter[int] = Counter()
    for number, sample in enumerate(_samples(dataset)):
        counts[_whole(measure(sample), number)] += 1
        if on_progress is not None and (number + 1) % _PROGRESS_SAMPLES == 0:
            on_progress(number + 1)
    if not counts:
        raise UsageError("the dataset is empty: give samples, or their lengths")
    return _lengths(counts, quantile, multiple)


def _lengths(counts: Mapping[int, int], quantile: float, multiple: int) -> BatchLengths:
    lengths = sorted(counts)
    num_up_to = list(itertools.accumulate(counts[each] for each in lengths))
    num_samples = num_up_to[-1]
    num_kept = max(1, math.floor(quantile * num_samples + 1e-9))
    last = bisect.bisect_left(num_up_to, num_kept)
    return BatchLengths(
        lengths=tuple(lengths[: last + 1]),
        num_up_to=(*num_up_to[:last], num_kept),
        num_left_out=num_samples - num_kept,
        multiple=multiple,
    )


def _samples(dataset: Any) -> Iterator[Any]:
    """Iterator over a dataset's samples, by index if the dataset is not iterable.

    PyTorch's datasets need not be iterable, and need not raise `IndexError` at their end, so the index goes
    up to `len(dataset)`.

    Raises:
        UsageError: the dataset is a mapping, or neither iterable nor a sequence.
    """
    if isinstance(dataset, Mapping):
        raise UsageError(
            f"expected a sequence of samples, got a {type(dataset).__name__} of "
            f"{', '.join(map(str, dataset))}: give one of them"
        )
    if hasattr(dataset, "__iter__"):
        return iter(dataset)
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return (dataset[index] for index in range(len(dataset)))
    raise UsageError(f"expected a sequence of samples or of lengths; got {type(dataset).__name__}")


def _own_length(sample: Any) -> Any:
    try:
        return operator.index(sample)
    except TypeError:
        pass
    if isinstance(sample, str | bytes | tuple | Mapping) or not isinstance(sample, Sized):
        raise UsageError(
            f"the length of a {type(sample).__name__} does not tell its size on the GPU: give a function "
            'that does, such as length=lambda sample: len(sample["input_ids"])'
        )
    return len(sample)


def _whole(length: Any, number: int) -> int:
    try:
        whole = -1 if isinstance(length, bool) else operator.index(length)
    except TypeError:
        whole = -1
    if whole < 0:
        raise UsageError(
            f"sample {number} has the length {length!r}: lengths must be whole numbers, 0 or more"
        )
    return whole


def _share_within(num_within: int, num_samples: int, num_drawn: int) -> float:
    """Probability that samples drawn at random are all among the `num_within` shortest of a dataset.

    It is C(num_within, num_drawn) / C(num_samples, num_drawn), as samples are drawn without replacement.

    Args:
        num_within: number of samples that are short enough.
        num_samples: number of samples in the dataset.
        num_drawn: number of samples that are drawn.
    """
    if num_within < num_drawn:
        return 0.0
    if num_within == num_samples:
        return 1.0
    logarithm = (
        math.lgamma(num_within + 1)
        - math.lgamma(num_within - num_drawn + 1)
        - math.lgamma(num_samples + 1)
        + math.lgamma(num_samples - num_drawn + 1)
    )
    return math.exp(min(0.0, logarithm))


def _require_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise UsageError(f"the batch size must be a whole number, 1 or more; got {batch_size}")
