"""Who is asked what an older cuDNN does."""

from __future__ import annotations

import dataclasses

from tests.bench.plan_sources import Without, WithWeightGradients, copying_or_not, older_cudnn
from tests.workers.predict.plan_tables import CONVOLUTION, GROUPED, POINTWISE, of_sizes
from workers.predict.plans import Plan
from workers.trace import ConvPass


def test_gradients_of_weights_are_planned_by_a_source_of_their_own() -> None:
    passes = [dataclasses.replace(CONVOLUTION, conv_pass=conv_pass) for conv_pass in ConvPass]
    mixed = WithWeightGradients(of_sizes(1), of=of_sizes(2))
    assert [plans[0].workspace_bytes for plans in mixed.plans(passes)] == [1, 1, 2]
    assert not WithWeightGradients(of_sizes(1), of=of_sizes(2, knows_the_order=False)).knows_the_order


def test_kinds_of_convolutions_can_go_without_a_workspace() -> None:
    calls = [CONVOLUTION, POINTWISE, GROUPED]
    none = Without(of_sizes(7), pointwise=True).plans(calls)
    assert none == [(Plan(0, 7),), (Plan(-1, 0), Plan(0, 7)), (Plan(0, 7),)]


def test_an_older_cudnn_copies_what_a_newer_one_does_or_less() -> None:
    sources = copying_or_not(of_sizes(7))
    calls = (CONVOLUTION, POINTWISE, GROUPED)
    first = [[plans[0].workspace_bytes for plans in source.plans(calls)] for source in sources]
    assert first == [[7, 7, 7], [7, 0, 7], [7, 0, 0]]


def test_the_alternatives_of_an_older_cudnn_differ() -> None:
    names = [source.name for source in older_cudnn("sm_80")]
    assert len(set(names)) == len(names) == 4
    assert sum("for weights" in name for name in names) == 2
