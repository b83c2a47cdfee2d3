"""Every view of a real model agrees with the simulator to the byte, and the views with each other."""

from __future__ import annotations

import collections
import dataclasses

import pytest

from autofit.api import card_named, refer
from autofit.explain.code import code_view
from autofit.explain.filters import CATEGORIES, parse_filters
from autofit.explain.ops import operator_view
from autofit.explain.profile import Profile, alive_at, lifetimes, peak_position, phase_of
from autofit.explain.scopes import scope_view
from autofit.explain.tensors import tensor_view
from autofit.session import local_predictor
from workers.allocator import CachingAllocator
from workers.protocol import Knobs

ALL = parse_filters()
MODELS = {"davenet-audio": 4, "resnet50": 32, "davenet": 32, "gpt2": 32}


@pytest.fixture(scope="module", params=MODELS.items(), ids=MODELS)
def predicted(request, tmp_path_factory):
    """The profile and the estimate of one model, from one trace."""
    model, batch_size = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        predictor = local_predictor(refer(model), with_tensors=True, with_calls=True)
        card = card_named("rtx-3090")
        return predictor.profile(Knobs(), card, batch_size), predictor.estimate(Knobs(), card, batch_size)


@pytest.fixture
def profile(predicted) -> Profile:
    return predicted[0]


def test_what_is_alive_at_the_peak_adds_up_to_the_simulators(predicted):
    profile, estimate = predicted
    assert profile.peak_allocated_bytes == estimate.peak_allocated_bytes
    assert profile.peak_reserved_bytes == estimate.peak_reserved_bytes
    alive = alive_at(profile, peak_position(profile))
    assert sum(profile.block_bytes[number] for number in alive) == profile.peak_allocated_bytes


def test_the_blocks_are_those_that_the_allocator_gives(profile):
    allocator = CachingAllocator()
    blocks = {}
    for event in profile.trace.events:
        if event < 0:
            if ~event in blocks:
                allocator.free(blocks.pop(~event))
        elif profile.requested_bytes[event]:
            blocks[event] = allocator.malloc(profile.requested_bytes[event])
            assert blocks[event].size == profile.block_bytes[event]
    assert allocator.peak_allocated_bytes == profile.peak_allocated_bytes
    assert allocator.peak_reserved_bytes == profile.peak_reserved_bytes


def test_every_view_has_the_peak_and_the_same_bytes(profile):
    lists = [operator_view(profile, ALL), tensor_view(profile, ALL)]
    trees = [scope_view(profile, ALL), code_view(profile, ALL)]
    sums = [
        (
            sum(row.sizes.requested_bytes for row in view.rows),
            sum(row.sizes.peak_bytes for row in view.rows),
            sum(row.sizes.count for row in view.rows),
        )
        for view in lists
    ]
    sums += [
        (
            sum(row.own.requested_bytes for row in view.rows),
            sum(row.own.peak_bytes for row in view.rows),
            sum(row.own.count for row in view.rows),
        )
        for view in trees
    ]
    sums += [dataclasses.astuple(view.rows[0].sizes) for view in trees]
    assert len(set(sums)) == 1
    assert sums[0][1] == profile.peak_allocated_bytes


def test_operators_are_sums_of_tensors(profile):
    lives = lifetimes(profile)
    of_tensors = collections.Counter()
    for row in tensor_view(profile, ALL).rows:
        allocation = profile.trace.allocations[profile.trace.events[row.birth]]
        phase = phase_of(profile, row.birth + 1).name
        of_tensors[allocation.operator.removeprefix("aten."), phase] += row.sizes.requested_bytes
        assert lives.births[profile.trace.events[row.birth]] == row.birth
    of_operators = {(r.name, r.phase): r.sizes.requested_bytes for r in operator_view(profile, ALL).rows}
    assert of_tensors == of_operators


def test_modules_are_sums_of_tensors(profile):
    of_tensors = collections.Counter()
    for row in tensor_view(profile, ALL).rows:
        of_tensors[profile.trace.allocations[profile.trace.events[row.birth]].module] += row.sizes.peak_bytes
    root, *nodes = scope_view(profile, ALL).rows
    of_modules = {"": root.own.peak_bytes, **{row.name: row.own.peak_bytes for row in nodes}}
    assert +of_tensors == +collections.Counter(of_modules)


def test_categories_are_the_estimates_breakdown(predicted):
    profile, estimate = predicted
    names = {
        "parameter": "parameters",
        "gradient": "gradients",
        "optimizer-state": "optimizer_state",
        "activation": "activations",
        "input": "inputs",
        "workspace": "workspace",
    }
    breakdown = dataclasses.asdict(estimate.breakdown)
    rows = tensor_view(profile, ALL).rows
    assert {row.category.replace("_", "-") for row in rows} <= set(CATEGORIES)
    for category, part in names.items():
        at_peak = (row for row in rows if row.category.replace("_", "-") == category and row.sizes.peak_bytes)
        assert sum(row.sizes.requested_bytes for row in at_peak) == breakdown[part], category


def test_parameters_gradients_and_state_are_their_modules(profile):
    allocations = [profile.trace.allocations[number] for number in alive_at(profile, peak_position(profile))]
    held = [each for each in allocations if each.category in ("parameter", "gradient", "optimizer_state")]
    assert held
    for each in held:
        assert each.name, each
        assert each.name.startswith(each.module)


def test_a_profile_from_disk_has_the_same_views(profile):
    again = Profile.from_bytes(profile.to_bytes())
    assert again == profile
