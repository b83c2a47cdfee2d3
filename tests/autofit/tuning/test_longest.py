"""The longest samples that fit at a batch size."""

from __future__ import annotations

import dataclasses

import pytest

from autofit.errors import UsageError, WorkloadFailedError
from autofit.hardware.budget import Budget
from autofit.predict.predictor import Predictor
from autofit.search.space import SearchSpace
from autofit.settings.goals import Risk
from autofit.settings.target import Target
from autofit.tuning.longest import at_their_longest
from autofit_workers.spec.protocol import Device

MIB = 1024**2
SPACE = SearchSpace(choices={"conv_algo": ("cudnn",)})


@pytest.fixture
def longest(make_sized_worker, workload, exact, card):
    def find(budget_mib: int, *, batch_size: int = 1, allows_long: bool = False, **changed):
        said = {name: changed.pop(name) for name in ("longest", "own_size") if name in changed}
        worker = make_sized_worker(**said)
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


def test_it_ends_at_the_very_limit_of_the_model(longest):
    found, space, notes, _ = longest(100_000, longest=1000)
    assert found == 1000
    assert notes == ("seq-len 1000 is the longest at batch 1: the model was made for 1000",)
    assert not space.caps  # larger batches may fit


def test_where_memory_ends_it_before_that_limit_the_limit_is_what_fails(
    longest, make_sized_worker, workload, exact, card
):
    knobs = dataclasses.replace(SPACE.fixed, seq_len=960)
    at_960 = Predictor(workload, make_sized_worker(), residuals=exact).estimate(knobs, card, 16)
    found, space, notes, _ = longest(at_960.peak_reserved_bytes // MIB, batch_size=16, longest=1000)
    assert found == 960
    assert notes[0].startswith("seq-len 960 is the longest at batch 16: 1000 is predicted to reserve ")
    assert set(space.caps.values()) == {16}


@pytest.mark.parametrize("longest_size", [77, 300])
def test_of_a_model_for_short_samples_the_sizes_are_traced(longest, longest_size):
    found, _, _, worker = longest(100_000, longest=longest_size)
    assert found == longest_size
    assert all(size <= longest_size for _, size in worker.points if size is not None)


def test_it_costs_two_traces_and_the_one_that_confirms_the_answer(longest):
    found, space, _, worker = longest(600, own_size=128)
    assert set(worker.points) - {(1, None)} == {(1, 128), (1, 256), (1, found)}
    assert set(space.caps.values()) == {1}


def test_a_size_that_the_workload_fails_at_is_no_answer_and_is_told(longest):
    found, _, notes, _ = longest(100_000, fails_above=4100)
    assert found == 4096
    assert notes == (
        "seq-len 4096 is the longest at batch 1: with 4160 the workload fails: ValueError: too long",
    )


def test_a_workload_that_fails_at_every_size_has_no_answer(longest):
    with pytest.raises(WorkloadFailedError, match="too long"):
        longest(600, fails_above=8, own_size=8)


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
