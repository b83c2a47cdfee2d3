"""What is asked for: the order of cards, and the least memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.hardware.gpus import catalogue
from autofit.questions.check import Answer
from autofit.requests.answer import smallest_request
from autofit.requests.asked import Asked, in_order
from autofit.requests.formats import FORMATS
from tests.autofit.requests.answers import GIB, answer, fit, needing

GPUS = [gpu for gpu in catalogue().values() if not gpu.is_mig_slice]


def test_without_prices_the_least_memory_of_all_gpus_comes_first():
    rows = [fit(catalogue()["l4"], 9 * GIB, 2), fit(catalogue()["a100-40g"], 9 * GIB, 1)]
    assert [row.gpu for row in in_order(rows)] == ["a100-40g", "l4"]
    rows.append(fit(catalogue()["l4"], 9 * GIB, 1))
    assert [(row.gpu, row.num_gpus) for row in in_order(rows)] == [("l4", 1), ("a100-40g", 1)]


def test_the_cheapest_for_a_sample_comes_first_and_what_has_no_time_last():
    rows = [
        fit(catalogue()["t4"], 9 * GIB, price=0.3),
        fit(catalogue()["l4"], 9 * GIB, price=0.7, samples_per_price=100.0),
        fit(catalogue()["a100-40g"], 9 * GIB, price=3.0, samples_per_price=250.0),
    ]
    assert [row.gpu for row in in_order(rows)] == ["a100-40g", "l4", "t4"]
    found = smallest_request(answer(rows, epoch_samples=1000), FORMATS["skypilot"], names_cards=True)
    assert [card.epoch_price for card in found.cards] == [4.0, 10.0, None]


def test_what_may_not_fit_is_not_asked_for():
    unsure = fit(catalogue()["t4"], 9 * GIB, verdict=Answer.UNSURE)
    found = smallest_request(
        answer([unsure, fit(catalogue()["l4"], 9 * GIB)]), FORMATS["slurm"], names_cards=True
    )
    assert [card.gpu for card in found.cards] == ["l4"]
    none = smallest_request(answer([unsure]), FORMATS["slurm"], names_cards=True)
    assert (none.request, none.verdict) == (None, Answer.UNSURE)


@given(
    st.lists(st.tuples(st.sampled_from(GPUS), st.floats(0.1, 200)), min_size=1, max_size=12),
)
def test_the_least_card_lets_no_card_in_on_which_it_does_not_fit(needs):
    rows = tuple(fit(gpu, int(gib * GIB)) for gpu, gib in dict(needs).items())
    asked = Asked(rows=rows, fitting=in_order(rows))
    if not asked.fitting:
        return
    least = asked.least_card(lambda gpu: gpu.total_bytes, lambda gpu: gpu.sold_gb * GIB)
    if least is None:
        return
    for row in rows:
        gpu = catalogue()[row.gpu]
        numbers = Asked(rows=(row,), fitting=()).least_major
        if gpu.total_bytes >= least.gpu.total_bytes and numbers >= (least.major or 0):
            assert row.verdict is Answer.FITS


@given(st.lists(st.tuples(st.sampled_from(GPUS), st.floats(0.1, 200)), min_size=1, max_size=12))
def test_a_share_suffices_on_every_card_that_has_it_or_the_card_is_named(needs):
    rows = tuple(fit(gpu, int(gib * GIB)) for gpu, gib in dict(needs).items())
    asked = Asked(rows=rows, fitting=in_order(rows))
    if not asked.fitting:
        return
    share = asked.shared_bytes()
    assert any(row.total_bytes >= share for row in asked.fitting)
    named = asked.unpredicted(share)
    for row in rows:
        if row.total_bytes >= share and row.gpu not in named:
            assert row.least_total_bytes is not None
            assert row.least_total_bytes <= share


def test_a_sentence_says_what_is_short():
    found = smallest_request(needing(22, "t4", "l4"), FORMATS["slurm"], names_cards=True)
    assert found.exit_code == 3
    assert "needs up to 22.00 GiB, and l4, the nearest, has" in found.reason
    amd = smallest_request(needing(22, "mi300x"), FORMATS["kubernetes"], names_cards=True)
    assert "Kubernetes gives none of the cards of --gpu" in amd.reason


@pytest.mark.parametrize("key", ["t4", "a100-40g-mig-1g.5gb", "h200"])
def test_the_least_total_is_the_smallest_with_which_it_fits(key):
    import dataclasses

    from autofit.hardware.budget import budget_of

    gpu = catalogue()[key]
    row = fit(gpu, 3 * GIB)
    assert row.least_total_bytes is not None
    exact = dataclasses.replace(gpu, total_bytes=row.least_total_bytes)
    assert budget_of(exact).usable_bytes >= 3 * GIB
    less = dataclasses.replace(gpu, total_bytes=row.least_total_bytes - 1)
    assert budget_of(less).usable_bytes < 3 * GIB
