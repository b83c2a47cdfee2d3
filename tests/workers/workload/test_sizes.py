"""Samples of any size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from autofit_workers.spec.errors import InapplicableError
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Setup
from autofit_workers.spec.trace import SampleSize
from autofit_workers.workload.overrides import with_overrides
from autofit_workers.workload.sizes import sample_size
from autofit_workers.workload.workload import Workload

CPU = torch.device("cpu")


def words(batch_size: int, device: torch.device, *, size: int = 16) -> Tensor:
    return torch.zeros(batch_size, size, device=device)


def workload(**changed: object) -> Workload:
    made = {"build_model": nn.Identity, "make_batch": words, "loss": print, "name": "words"}
    return Workload(**{**made, **changed})


def test_a_size_that_was_asked_for_is_that_of_the_batches():
    assert with_overrides(workload(), Knobs()).make_batch(2, CPU).shape == (2, 16)
    assert with_overrides(workload(), Knobs(seq_len=40)).make_batch(2, CPU).shape == (2, 40)


def test_a_model_that_depends_on_the_size_is_built_for_it():
    taking = workload(build_model=lambda size=16: nn.Linear(size, 1))
    assert taking.build_model().in_features == 16
    assert with_overrides(taking, Knobs(seq_len=40)).build_model().in_features == 40


def test_samples_of_one_size_have_no_other():
    fixed = workload(make_batch=lambda batch_size, device: torch.zeros(batch_size, 16, device=device))
    assert sample_size(fixed, None) is None
    with pytest.raises(InapplicableError, match="--seq-len: words makes samples of one size; let its make"):
        with_overrides(fixed, Knobs(seq_len=40))


def test_samples_beyond_what_a_model_was_made_for_are_allowed_on_request():
    short = workload(max_size=32)
    with pytest.raises(
        InapplicableError, match="samples of 40 are beyond the 32 positions of words: ask for --seq-len 32"
    ):
        with_overrides(short, Knobs(seq_len=40))
    assert with_overrides(short, Knobs(seq_len=40), Setup(allows_long=True)).make_batch(1, CPU).shape == (
        1,
        40,
    )


def test_what_is_known_of_the_sizes():
    known = sample_size(workload(max_size=32, size_multiple=8), None)
    assert known == SampleSize(size=16, multiple=8, longest=32)
    assert sample_size(workload(), 40) == SampleSize(size=40, multiple=64)
