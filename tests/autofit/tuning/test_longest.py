"""The longest samples that fit at a batch size."""

from __future__ import annotations

import dataclasses

import pytest

from autofit.errors import UsageError
from autofit.hardware.budget import Budget
from autofit.predict.predictor import Predictor
from autofit.search.space import SearchSpace
from autofit.settings.goals import Risk
from autofit.settings.target import Target
from autofit.tuning.longest import at_their_longest
from workers.protocol import Device

MIB = 1024**2
SPACE = SearchSpace(choices={"conv_algo": ("cudnn",)})


@pytest.fixture
def longest(make_sized_worker, workload, exact, card):
    def find(budget_mib: int, *, batch_size: int = 1, allows_long: bool = False, **changed):
        worker = make_sized_worker(longest=changed.pop("longest", None))
        vars(worker).update(changed)
        budget = Budget(device_total_bytes=budget_mib * MIB, context_bytes=0, other_bytes=0, margin_bytes=0)
        target = Target(card=card, budget=budget, device=Device(kind="cuda", name=card.name), probe=None)
        space, notes = at_their_longest(
            SPACE,
            target,
            Predictor(workload, worker, residuals=exact),
            batch_size=batch_size,
            allows_long=allows_long,
            risk=Risk.SAFE,
        )
        (knobs,) = space.settings
        return knobs.seq_len, space, notes, worker

    return find


@pytest.mark.parametrize("asked", [(1, 600), (4, 1000), (3, 777)])
def test_it_fits_and_the_next_does_not(longest, asked, workload, exact, card):
    batch_size, budget_mib = asked
    found, space, notes, worker = longest(budget_mib, batch_size=batch_size)
    assert space.min_batch == batch_size
    predictor = Predictor(workload, worker, residuals=exact)

    def peak(size: int) -> int:
        knobs = dataclasses.replace(space.fixed, seq_len=size)
        return predictor.estimate(knobs, card, batch_size).peak_reserved_bytes

    assert peak(found) <= budget_mib * MIB < peak(found + 64)
    (note,) = notes
    assert note.startswith(f"seq-len {found} is the longest at batch {batch_size}: {found + 64} is predicted")


def test_a_model_is_not_given_more_than_it_was_made_for(longest):
    found, _, notes, _ = longest(100_000, longest=2048)
    assert found == 2048
    assert notes == ("seq-len 2048 is the longest at batch 1: the model was made for 2048",)


def test_unless_that_is_allowed(longest):
    found, *_ = longest(100_000, longest=2048, allows_long=True)
    assert found > 2048


def test_where_everything_fits_it_is_told_that_the_search_ended(longest):
    found, _, notes, _ = longest(100_000_000)
    assert notes == (f"seq-len {found} is the longest at batch 1: longer ones are not looked at",)


def test_a_step_that_is_another_from_some_size_on_is_traced(longest):
    # Beyond a window of 4096 an element takes twice as much.
    shape_of = lambda batch, size: (batch, size, 4096 if size <= 4096 else 8192)  # noqa: E731
    found, _, notes, worker = longest(200, shape_of=shape_of)
    assert found % 64 == 0
    assert found > 4096
    assert (1, found) in worker.points
    assert (1, found + 64) in worker.points
    assert "over the budget" in notes[0]


def test_where_nothing_fits_the_smallest_is_answered(longest):
    found, _, notes, _ = longest(10)
    assert found == 64
    assert notes == ("not even seq-len 64 fits at batch 1",)


def test_samples_of_one_size_cannot_be_longer(worker, workload, exact, card):
    budget = Budget(device_total_bytes=MIB, context_bytes=0, other_bytes=0, margin_bytes=0)
    target = Target(card=card, budget=budget, device=Device(kind="cuda", name=card.name), probe=None)
    with pytest.raises(UsageError, match="makes samples of one size; let its make_batch take a keyword"):
        at_their_longest(
            SPACE,
            target,
            Predictor(workload, worker, residuals=exact),
            batch_size=1,
            allows_long=False,
            risk=Risk.SAFE,
        )


def test_of_several_settings_each_is_told_by_its_name(make_sized_worker, workload, exact, card):
    budget = Budget(device_total_bytes=600 * MIB, context_bytes=0, other_bytes=0, margin_bytes=0)
    target = Target(card=card, budget=budget, device=Device(kind="cuda", name=card.name), probe=None)
    _, notes = at_their_longest(
        SearchSpace(choices={"conv_algo": ("cudnn",), "precision": ("fp32", "bf16")}),
        target,
        Predictor(workload, make_sized_worker(), residuals=exact),
        batch_size=2,
        allows_long=False,
        risk=Risk.SAFE,
    )
    assert len(notes) == 2
    assert "is the longest at batch 2 with fp32: " in notes[0]
    assert "is the longest at batch 2 with bf16: " in notes[1]
