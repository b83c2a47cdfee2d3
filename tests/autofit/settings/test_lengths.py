"""How long batches become: held against every batch that there is of small data sets."""

from __future__ import annotations

import doctest
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import autofit
from autofit.errors import UsageError
from autofit.settings import lengths as module

LENGTHS = (12, 7, 7, 9, 31, 8, 10, 11)


@pytest.mark.parametrize("batch_size", range(1, len(LENGTHS) + 1))
def test_the_typical_length_is_the_mean_of_the_longest_over_all_batches(batch_size: int) -> None:
    longest = [max(batch) for batch in itertools.combinations(LENGTHS, batch_size)]
    found = autofit.worst_case_lengths(LENGTHS)
    assert found.typical(batch_size) == math.ceil(sum(longest) / len(longest))
    assert found.worst(batch_size) == max(LENGTHS)


def test_a_batch_larger_than_the_data_set_has_all_of_it() -> None:
    assert autofit.worst_case_lengths(LENGTHS).typical(1000) == 31


def test_of_many_samples_a_batch_is_far_below_the_worst() -> None:
    found = autofit.worst_case_lengths(itertools.chain([100] * 1_000_000, [4000]))
    assert (found.typical(32), found.worst(32)) == (101, 4000)
    assert found.num_samples == 1_000_001


def test_the_kind_chooses_between_the_two() -> None:
    found = autofit.worst_case_lengths(LENGTHS)
    assert (found.of("typical", 4), found.of("worst", 4)) == (22, 31)
    with pytest.raises(
        UsageError, match=r"kind must be one of typical, worst; got 'wurst'. Did you mean worst"
    ):
        found.of("wurst", 4)


def test_batches_are_padded_to_a_multiple() -> None:
    found = autofit.worst_case_lengths(LENGTHS, multiple=8)
    assert (found.typical(4), found.worst(4)) == (24, 32)


def test_a_quantile_leaves_the_longest_out() -> None:
    found = autofit.worst_case_lengths(LENGTHS, quantile=0.9)
    assert (found.worst(1), found.num_samples, found.num_left_out) == (12, 7, 1)
    assert found.typical(7) == 12
    assert autofit.worst_case_lengths([5, 5, 5, 9], quantile=0.5).num_samples == 2
    assert autofit.worst_case_lengths([3, 4], quantile=0.1).worst(1) == 3


class Indexed:
    """As map-style data sets of PyTorch may be: no iterator, and no end but their length."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": [0] * (index % 3 + 1)}


def _streamed() -> Iterator[list[int]]:
    yield from ([0] * each for each in LENGTHS)


@pytest.mark.parametrize(
    ("dataset", "longest"),
    [
        ([[1, 2], [1, 2, 3]], 3),
        (_streamed(), 31),
        (torch.tensor([3, 9, 4]), 9),
        ([torch.zeros(5, 2), torch.zeros(7, 2)], 7),
    ],
    ids=["lists", "a generator", "a tensor of lengths", "tensors"],
)
def test_samples_and_lengths_are_read_from_whatever_iterates(dataset: Any, longest: int) -> None:
    assert autofit.worst_case_lengths(dataset).worst(1) == longest


def test_a_function_says_the_length_of_samples_of_another_kind() -> None:
    found = autofit.worst_case_lengths(Indexed(), length=lambda sample: len(sample["input_ids"]))  # type: ignore[arg-type]
    assert (found.worst(1), found.num_samples) == (3, 3)


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ([], {}, "the dataset is empty: give samples, or their lengths"),
        ([3, -1], {}, "sample 1 has the length -1: lengths must be whole numbers"),
        ([1, 2], {"length": lambda each: each / 2}, r"sample 0 has the length 0\.5: lengths must be whole"),
        ([True], {"length": lambda each: each}, "sample 0 has the length True"),
        ([{"input_ids": [1]}], {}, r"the length of a dict does not .* such as length=lambda sample: len"),
        (["a text"], {}, "the length of a str does not tell its size"),
        ([([1, 2], 0)], {}, "the length of a tuple does not tell its size"),
        ([1.5], {}, "the length of a float does not tell its size"),
        ({"input_ids": [[1]]}, {}, "a sequence of samples, got a dict of input_ids: give one of them"),
        (5, {}, "expected a sequence of samples or of lengths; got int"),
        ([1], {"quantile": 0.0}, "quantile must be above 0 and up to 1; got 0"),
        ([1], {"multiple": 0}, "multiple must be a whole number, 1 or more; got 0"),
    ],
)
def test_what_says_no_length_is_refused_with_the_next_step(
    dataset: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        autofit.worst_case_lengths(dataset, **options)


def test_there_is_no_batch_of_no_samples() -> None:
    with pytest.raises(UsageError, match="the batch size must be a whole number, 1 or more; got 0"):
        autofit.worst_case_lengths(LENGTHS).worst(0)


def test_whoever_waits_for_a_large_data_set_is_told_how_far_it_came() -> None:
    told: list[int] = []
    autofit.worst_case_lengths(range(25_000), on_progress=told.append)
    assert told == [10_000, 20_000]


def test_the_examples_of_the_documentation_are_right() -> None:
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed
