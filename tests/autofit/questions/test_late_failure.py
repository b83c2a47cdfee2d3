"""When in an epoch a batch comes that does not fit: what is stated, against epochs that are simulated."""

from __future__ import annotations

import itertools
import random

import pytest

from autofit.questions.late_failure import of_lengths
from autofit.search.curves import Curve
from autofit.settings.goals import Batching
from autofit.settings.lengths import BatchLengths, worst_case_lengths

BYTES_A_TOKEN = 1000
_draw = random.Random(0)
LENGTHS = [_draw.randint(10, 900) for _ in range(3000)] + [1000] * 2


class Line:
    """Takes so many bytes for each token of a batch that is padded to one length."""

    def __init__(self, tokens_of) -> None:
        self._tokens_of = tokens_of

    def peak_reserved_bytes(self, size: int, *, stop_above_bytes: int | None = None) -> int:
        return BYTES_A_TOKEN * self._tokens_of(size)

    def lower_bound_bytes(self, size: int) -> int:
        return self.peak_reserved_bytes(size)


class Surface:
    """Peaks that are the padded tokens of a batch."""

    def curve(self, size: int, batch_size: int) -> Curve:
        return Line(lambda batch: batch * size)

    def along_sizes(self, batch_size: int) -> Curve:
        return Line(lambda size: batch_size * size)


def answer(lengths: BatchLengths, budget_tokens: int, batching: Batching = Batching.SHUFFLED):
    return of_lengths(
        lengths,
        Surface(),
        largest_batch=budget_tokens // lengths.worst(1) or None,
        max_batch=4096,
        batching=batching,
        budget_bytes=BYTES_A_TOKEN * budget_tokens,
    )


def test_the_largest_batch_for_the_longest_sample_never_fails():
    found = answer(worst_case_lengths(LENGTHS), 16_000)
    assert found.by_batch[0].batch_size == 16
    assert (found.by_batch[0].probability, found.by_batch[0].num_too_long) == (0.0, 0)
    assert found.by_batch[0].median_batch is None
    assert [row.batch_size for row in found.by_batch] == [16, 20]
    assert all(0 < row.probability <= 1 for row in found.by_batch[1:])


def test_what_is_too_long_for_a_batch_is_counted():
    found = answer(worst_case_lengths(LENGTHS), 16_000)
    row = found.by_batch[1]
    assert row.longest_fitting == 768
    assert row.num_too_long == sum(length > 768 for length in LENGTHS)
    assert row.num_batches == 151


def test_a_cap_at_the_99th_percentile_buys_a_larger_batch():
    found = answer(worst_case_lengths(LENGTHS), 16_000)
    assert found.cap_length == sorted(LENGTHS)[round(0.99 * len(LENGTHS)) - 1]
    assert found.capped_batch == 16_000 // (-(-found.cap_length // 64) * 64)


@pytest.mark.parametrize("num_too_long", [1, 3, 40])
def test_the_stated_probabilities_are_those_of_simulated_epochs(num_too_long):
    # Of a shuffled epoch the places of the samples that are too long are a random subset of all places.
    num_samples, batch_size, num_epochs = 100_000, 16, 4000
    lengths = worst_case_lengths([100] * (num_samples - num_too_long) + [1000] * num_too_long)
    draw, num_batches = random.Random(7), num_samples // batch_size
    first = [min(draw.sample(range(num_samples), num_too_long)) // batch_size + 1 for _ in range(num_epochs)]
    ends = [round(num_batches * share) for share in (0.01, 0.03, 0.1, 0.3, 0.6, 1.0)]
    by = [0.0, *(lengths.probability_by(end, batch_size, 100) for end in ends)]
    assert by[-1] == pytest.approx(1)
    seen = [sum(start < batch <= end for batch in first) for start, end in itertools.pairwise([0, *ends])]
    expected = [num_epochs * (high - low) for low, high in itertools.pairwise(by)]
    classes = [(s, e) for s, e in zip(seen, expected, strict=True) if e >= 5]
    chi_square = sum((s - e) ** 2 / e for s, e in classes)
    assert chi_square < 20.5  # 99.9 % of χ² with 5 degrees of freedom


def test_half_of_the_epochs_have_failed_by_the_median_batch():
    lengths = worst_case_lengths(LENGTHS)
    row = answer(lengths, 16_000).by_batch[1]
    assert row.median_batch is not None
    assert lengths.probability_by(row.median_batch, row.batch_size, 768) >= 0.5
    assert lengths.probability_by(row.median_batch - 1, row.batch_size, 768) < 0.5


@pytest.mark.parametrize("batching", [Batching.GROUPED, Batching.PACKED])
def test_the_first_batch_has_the_longest_sample_where_batches_are_not_of_any_samples(batching):
    found = answer(worst_case_lengths(LENGTHS), 16_000, batching)
    assert [(row.batch_size, row.probability) for row in found.by_batch] == [(16, 0.0)]
    assert found.by_batch[0].typical_length == 1000


def test_nothing_fits_with_the_longest_sample():
    found = answer(worst_case_lengths(LENGTHS), 900)
    alone, pairs = found.by_batch[:2]
    assert (alone.batch_size, alone.longest_fitting) == (1, 896)
    assert alone.num_too_long == sum(length > 896 for length in LENGTHS)
    assert (pairs.batch_size, pairs.longest_fitting) == (2, 448)
