"""Who is asked what cuDNN does on the card of a row, an older one above all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from autofit_workers.replay.plans.plan import Plan, PlanSource
from autofit_workers.spec.work import Convolution, ConvPass
from tests.bench.plan_sources import (
    CUDNN,
    FORMULAS,
    TABLE,
    Without,
    WithWeightGradients,
    copying_or_not,
    older_cudnn,
    sources_of,
)
from tests.bench.tables.rows import Row
from tests.bench.tables.setting import Setting
from tests.workers.replay.plan_tables import CONVOLUTION, GROUPED, POINTWISE, MadeUpPlans, of_sizes, variant

WEIGHTS = dataclasses.replace(CONVOLUTION, conv_pass=ConvPass.WGRAD)


def first_bytes(source: PlanSource, *calls: Convolution) -> list[int]:
    return [plans[0].workspace_bytes for plans in source.plans(calls)]


def unordered() -> MadeUpPlans:
    return of_sizes(1, knows_the_order=False)


def test_gradients_of_weights_are_planned_by_a_source_of_their_own() -> None:
    passes = [dataclasses.replace(CONVOLUTION, conv_pass=conv_pass) for conv_pass in ConvPass]
    mixed = WithWeightGradients(of_sizes(1), of_sizes(2))
    assert first_bytes(mixed, *passes) == [1, 1, 2]
    assert mixed.knows_the_order
    assert not WithWeightGradients(of_sizes(1), unordered()).knows_the_order
    assert not WithWeightGradients(unordered(), of_sizes(1)).knows_the_order


def test_kinds_of_convolutions_can_go_without_a_workspace() -> None:
    calls = [CONVOLUTION, POINTWISE, GROUPED]
    found = Without(of_sizes(7), pointwise=True).plans(calls)
    assert found == [(Plan(0, 7),), (Plan(-1, 0), Plan(0, 7)), (Plan(0, 7),)]
    assert first_bytes(Without(of_sizes(7), grouped=True), *calls) == [7, 7, 0]


def test_an_older_cudnn_copies_what_a_newer_one_does_or_less() -> None:
    found = [first_bytes(each, CONVOLUTION, POINTWISE, GROUPED) for each in copying_or_not(of_sizes(7))]
    assert found == [[7, 7, 7], [7, 0, 7], [7, 0, 0]]


def test_the_tables_alternatives_of_an_older_cudnn_differ_in_pointwise_and_grouped() -> None:
    grouped = variant(weight_shape=(64, 32, 3, 3), groups=2)
    found = [first_bytes(each, POINTWISE, grouped) for each in older_cudnn("sm_86")]
    assert [pointwise > 0 for pointwise, _ in found] == [True, False, False] * 2
    assert [grouped > 0 for _, grouped in found] == [True, True, False] * 2


def test_the_tables_alternatives_of_an_older_cudnn_differ_in_gradients_of_weights() -> None:
    # A layer of VGG: 9.20 copies more than both maps for the gradient of its weights, 9.8 these alone.
    maps = {"input_shape": (32, 512, 28, 28), "output_shape": (32, 512, 28, 28)}
    weights = dataclasses.replace(WEIGHTS, weight_shape=(512, 512, 3, 3), **maps)
    found = [first_bytes(each, weights)[0] for each in older_cudnn("sm_80")]
    newest, oldest = found[0], found[-1]
    assert newest > oldest > 0
    assert found == [newest] * 3 + [oldest] * 3


@pytest.mark.parametrize(("source", "of_older", "of_asked"), [(TABLE, 6, 1), (CUDNN, 3, 1), (FORMULAS, 0, 0)])
def test_a_row_has_one_source_where_its_cudnn_can_be_asked(
    source: str, of_older: int, of_asked: int, tmp_path: Path
) -> None:
    row = Row(
        table="t",
        model="m",
        family="f",
        setting=Setting(source="timm", model="m"),
        batch_size=1,
        gpu="a100-40g",
        architecture="sm_80",
        total_bytes=1,
        context_bytes=0,
    )
    for release, number in (("", of_older), ("2.6", of_older), ("2.9", of_asked)):
        assert len(sources_of(dataclasses.replace(row, torch_release=release), source, tmp_path)) == number
