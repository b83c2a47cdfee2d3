"""Settings that another makes pointless are not tried, and nothing that could win is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from autofit.search.pace import Pace
from autofit.search.pareto import Point, dominating
from autofit.search.pruning import Pruning
from autofit.search.sampler import no_curve
from autofit.search.space import SearchSpace
from autofit.study.ledger import Ledger
from autofit.study.owner import Owner
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import Device, Evidence, Peaks, TrialOutcome, Verdict

OWNER = Owner.this_process(lease_seconds=60.0)
SPACE = SearchSpace(
    choices={
        "precision": ("fp32", "amp-bf16", "ieee-fp32"),
        "checkpointing": ("none", "blocks"),
        "optimizer_impl": ("fused", "foreach", "loop"),
    },
    fixed=Knobs(optimizer="adam"),
    max_batch=500,
)
PACES = {knobs: Pace.of(knobs, "sm_80") for knobs in SPACE.settings}


def searched(
    largest: dict[Knobs, int], at_most: Callable[[Knobs], int | None], budget_bytes: int
) -> tuple[Ledger, list[tuple[Knobs, int]]]:
    """A search to its end of settings whose largest batches are these, and what it tried."""
    pruning = Pruning(SPACE.settings, paces=PACES, at_most=at_most)
    ledger = Ledger(SPACE, budget_bytes=budget_bytes, curves=no_curve, pruning=pruning)
    tried: list[tuple[Knobs, int]] = []
    while found := ledger.open_settings():
        knobs = found[0]
        size = ledger.deciding_size(knobs) or ledger.boundaries[knobs].propose()
        assert size is not None
        ledger.expect(len(tried), (knobs, size), OWNER)
        ledger.finish(len(tried), (knobs, size), outcome(knobs, size, largest[knobs]), num_steps=3)
        tried.append((knobs, size))
    return ledger, tried


def outcome(knobs: Knobs, batch_size: int, largest: int) -> TrialOutcome:
    peaks = Peaks(reserved_bytes=batch_size)
    return TrialOutcome(
        verdict=Verdict.FITS if batch_size <= largest else Verdict.OOM,
        evidence=Evidence.MEASURED,
        device=Device(kind="cuda", name="card"),
        batch_size=batch_size,
        knobs=knobs,
        first_step=peaks,
        steady=peaks,
    )


@pytest.mark.parametrize("seed", range(10))
def test_what_is_pruned_could_not_have_won(seed: int, budget_bytes: int) -> None:
    rng = random.Random(seed)
    largest = {knobs: rng.randint(1, 300) for knobs in SPACE.settings}
    bounds = {knobs: size + rng.randint(0, 40) for knobs, size in largest.items()}
    ledger, tried = searched(largest, bounds.get, budget_bytes)
    points = {
        knobs: Point(largest_batch=size, samples_per_second=None, pace=PACES[knobs])
        for knobs, size in largest.items()
    }
    front = set(largest) - set(dominating(points))
    assert front <= {knobs for knobs in largest if ledger.boundaries[knobs].is_settled}
    for knobs, pruned in ledger.pruned.items():
        assert knobs not in front
        assert largest[pruned.faster] >= pruned.at_most >= largest[knobs]
        assert PACES[pruned.faster].is_no_slower_than(PACES[knobs])
        assert pruned.failing_batch in (None, pruned.at_most + 1)
    assert ledger.pruned
    assert len(tried) < sum(1 for _ in largest) * 20
    assert set(ledger.pruned) | {k for k in largest if ledger.boundaries[k].is_settled} == set(largest)


def test_the_promising_settings_come_first_so_that_the_others_need_no_trial(budget_bytes: int) -> None:
    sizes = dict.fromkeys(SPACE.settings, 100)
    ledger, tried = searched(sizes, sizes.get, budget_bytes)
    (only,) = {knobs for knobs, _ in tried}
    assert only == Knobs(optimizer="adam", precision="amp-bf16", optimizer_impl="fused")
    assert len(ledger.pruned) == len(SPACE.settings) - 1


def test_without_a_prediction_one_size_that_fails_prunes_a_setting(budget_bytes: int) -> None:
    sizes = {knobs: 30 if knobs.precision == "amp-bf16" else 20 for knobs in SPACE.settings}
    ledger, tried = searched(sizes, lambda _knobs: None, budget_bytes)
    by_trial = {knobs: pruned for knobs, pruned in ledger.pruned.items() if pruned.failing_batch == 31}
    assert by_trial
    for knobs in by_trial:
        assert [size for tried_knobs, size in tried if tried_knobs == knobs] == [31]


def test_a_boundary_that_moves_down_opens_again_what_it_had_pruned(budget_bytes: int) -> None:
    sizes: dict[Knobs, Any] = dict.fromkeys(SPACE.settings, 100)
    ledger, tried = searched(sizes, sizes.get, budget_bytes)
    (winner,) = {knobs for knobs, _ in tried}
    assert not ledger.open_settings()
    ledger.finish(1000, (winner, 100), outcome(winner, 100, 99), num_steps=20)  # its soak failed
    while (size := ledger.boundaries[winner].propose()) is not None:
        ledger.finish(1000 + size, (winner, size), outcome(winner, size, 99), num_steps=3)
    assert winner not in ledger.pruned
    assert ledger.open_settings(), "they may fit more now"
