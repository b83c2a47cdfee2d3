"""Batches of any size like those of a data loader, and data that none can be made of."""

from __future__ import annotations

import random
import weakref

import pytest
import torch

from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.workload.live.batches import LikeBatches, WithNextBatch

CPU = torch.device("cpu")


class Texts:
    def __init__(self, size=20):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, place):
        random.random()
        return {"tokens": torch.arange(1, 3 + place % 5), "name": "text"}


def padded(samples):
    tokens = torch.nn.utils.rnn.pad_sequence([sample["tokens"] for sample in samples], batch_first=True)
    return {"tokens": tokens, "scale": torch.tensor(2.0), "names": [sample["name"] for sample in samples]}


def in_one_row(samples):
    return torch.cat([sample["tokens"] for sample in samples])[None]


def test_the_largest_sample_is_repeated_with_its_values():
    batches = LikeBatches(Texts(), padded)
    made = batches(5, CPU)
    assert batches.num_seen == 20
    assert torch.equal(made["tokens"], torch.arange(1, 7).repeat(5, 1))
    assert made["scale"] == 2
    assert batches(1, CPU)["tokens"].shape == (1, 6)


def test_the_bytes_of_a_batch_are_told_without_making_it():
    batches = LikeBatches(Texts(), padded)
    made = batches(5, CPU)
    assert batches.num_bytes(5) == made["tokens"].nbytes + made["scale"].nbytes == 5 * 6 * 8 + 4


def test_the_next_batch_is_kept_and_only_that():
    batches = WithNextBatch(LikeBatches(Texts(), padded))
    made = [batches(5, CPU) for _ in range(2)]
    assert all(torch.equal(each["tokens"], torch.arange(1, 7).repeat(5, 1)) for each in made)
    assert len({each["tokens"].data_ptr() for each in (*made, batches._next)}) == 3
    kept = weakref.ref(batches._next["tokens"])
    batches(3, CPU)
    assert kept() is None
    assert batches._next["tokens"].shape == (3, 6)


def test_samples_in_one_row_grow_along_it():
    assert LikeBatches(Texts(), in_one_row)(7, CPU).shape == (1, 42)


def test_random_numbers_that_samples_draw_are_put_back():
    random.seed(1)
    before = random.getstate()
    LikeBatches(Texts(), padded)
    assert random.getstate() == before


def test_large_values_are_not_sent_along():
    batches = LikeBatches([torch.rand(3, 1024, 1024)], torch.stack)
    made = batches(2, CPU)
    assert made.shape == (2, 3, 1024, 1024)
    assert bool((made == 0.5).all())


@pytest.mark.parametrize(
    ("dataset", "collate", "says"),
    [
        (iter([1]), padded, "gives its samples in one order only"),
        (Texts(0), padded, "the data set is empty"),
        (Texts(), lambda _: torch.zeros(4), "do not grow with the number of samples"),
        (Texts(), lambda samples: torch.zeros(len(samples) + 1), "do not grow in proportion"),
        (Texts(), lambda samples: torch.zeros([1] * len(samples)), "other dimensions"),
    ],
)
def test_data_that_no_batches_can_be_made_of_are_refused(dataset, collate, says):
    with pytest.raises(UnsupportedError, match=says):
        LikeBatches(dataset, collate)
