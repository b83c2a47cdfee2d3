"""Every view of a real model agrees with the simulator to the byte, and the views with each other."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import pickle

import pytest
from torch.cuda import _memory_viz as memory_viz

from autofit.explain.exports.chrome_trace import chrome_trace
from autofit.explain.exports.snapshot import encode_snapshot, snapshot, step_peak
from autofit.explain.profile import (
    Profile,
    alive_at,
    allocated_after,
    lifetimes,
    peak_position,
    phase_of,
    phases,
    timed_step,
)
from autofit.explain.views.code import code_view
from autofit.explain.views.filters import CATEGORIES, parse_filters
from autofit.explain.views.memory_plan import find_overlap
from autofit.explain.views.ops import operator_view
from autofit.explain.views.plan import plan
from autofit.explain.views.scopes import scope_view
from autofit.explain.views.tensors import tensor_view
from autofit.explain.views.timeline import course_of, timeline
from autofit.hardware.card import card_named
from autofit.predict.predictor import local_predictor
from autofit.settings.workloads import refer
from autofit_workers.replay.allocator import CachingAllocator
from autofit_workers.spec.knobs import Knobs
from tests.autofit.explain.trace_events import of_kind, validate

ALL = parse_filters()
MODELS = {"davenet-audio": 4, "resnet50": 32, "davenet": 32, "gpt2": 8}  # which all fit on the card
CASES = [(model, batch_size, "cudnn") for model, batch_size in MODELS.items()]
CASES.append(("davenet-audio", 4, "cudnn-benchmark"))


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def predicted(request, tmp_path_factory):
    """The profile and the estimate of one model, from one trace."""
    model, batch_size, conv_algo = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOFIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        predictor = local_predictor(refer(model), with_tensors=True, with_calls=True)
        card, knobs = card_named("rtx-3090"), Knobs(conv_algo=conv_algo)
        return predictor.profile(knobs, card, batch_size), predictor.estimate(knobs, card, batch_size)


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
            if ~event in profile.found_bytes:
                allocator.empty_cache()
                if found_bytes := profile.found_bytes[~event]:
                    allocator.free(allocator.malloc(found_bytes))
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
    sums += [dataclasses.astuple(view.rows[0].sizes)[:3] for view in trees]
    assert len(set(sums)) == 1
    assert sums[0][1] == profile.peak_allocated_bytes


def test_every_view_has_the_whole_time_of_the_device(profile):
    assert 0 < profile.timing.device_share <= 1
    views = [operator_view(profile, ALL), scope_view(profile, ALL), code_view(profile, ALL)]
    rows = [row.sizes for row in views[0].rows], *([row.own for row in view.rows] for view in views[1:])
    for sizes in rows:
        assert sum(each.step_share for each in sizes) == pytest.approx(profile.timing.device_share)


def test_operators_are_sums_of_tensors(profile):
    lives = lifetimes(profile)
    of_tensors = collections.Counter()
    for row in tensor_view(profile, ALL).rows:
        allocation = profile.trace.allocations[profile.trace.events[row.birth]]
        phase = phase_of(profile, row.birth + 1).name
        of_tensors[allocation.operator.removeprefix("aten."), phase] += row.sizes.requested_bytes
        assert lives.births[profile.trace.events[row.birth]] == row.birth
    of_operators = {(r.name, r.phase): r.sizes.requested_bytes for r in operator_view(profile, ALL).rows}
    assert +of_tensors == +collections.Counter(of_operators)  # those in place take time alone


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


def test_the_timeline_has_both_peaks_and_categories_that_add_up(profile):
    course = course_of(profile)
    assert course.allocated == allocated_after(profile)
    assert max(course.reserved) == profile.peak_reserved_bytes

    (lane,) = timeline(profile)
    assert lane.peak.allocated_bytes == sum(lane.peak.categories.values()) == profile.peak_allocated_bytes
    assert lane.peak_reserved_bytes == profile.peak_reserved_bytes
    assert lane.peak.position == peak_position(profile)
    at_peak = collections.Counter()
    for number in alive_at(profile, lane.peak.position):
        at_peak[profile.trace.allocations[number].category] += profile.block_bytes[number]
    assert +at_peak == +collections.Counter(lane.peak.categories)


def test_the_chrome_trace_is_valid_and_its_counters_reach_the_peaks(profile):
    events = chrome_trace(dataclasses.replace(profile, timing=None))["traceEvents"]
    validate(events)
    peaks = collections.defaultdict(int)
    for event in of_kind("C", events):
        peaks[event["name"]] = max(peaks[event["name"]], event["args"]["bytes"])
    assert peaks["allocated"] == profile.peak_allocated_bytes
    assert peaks["reserved"] == profile.peak_reserved_bytes
    paths = {event["args"]["path"] for event in of_kind("X", events) if event["cat"] == "module"}
    assert {each.module for each in profile.trace.allocations} - {""} <= paths


def test_the_chrome_trace_of_a_step_with_a_time_has_all_of_its_operators(profile):
    document = chrome_trace(profile)
    events, calls = document["traceEvents"], profile.timing.calls
    validate(events)
    slices = of_kind("X", events)
    unit = profile.timing.seconds.likely if profile.timing.seconds else 1.0
    device = [event for event in slices if "cname" in event]
    assert sum(event["dur"] for event in device) == pytest.approx(
        1e6 * unit * sum(call.end - call.start for call in calls), rel=1e-3
    )
    assert sum(event["cat"] == "operator" for event in slices) == len(calls)
    reached = max(e["args"]["bytes"] for e in of_kind("C", events) if e["name"] == "allocated")
    start, *_ = (p.start for p in phases(profile) if p.step == timed_step(profile))
    assert reached == max(allocated_after(profile)[start:])


def test_pytorchs_readers_find_both_peaks_in_the_snapshot(profile):
    whole = pickle.loads(encode_snapshot(snapshot(profile)))
    at_peak = pickle.loads(encode_snapshot(snapshot(profile, position=step_peak(profile))))
    (entries,) = whole["device_traces"]

    assert sum(map(memory_viz.calc_active, at_peak["segments"])) == profile.peak_allocated_bytes
    signs = {"segment_alloc": 1, "segment_free": -1}
    changes = [signs[entry["action"]] * entry["size"] for entry in entries if entry["action"] in signs]
    reserved = list(itertools.accumulate(changes))
    assert max(reserved) == profile.peak_reserved_bytes
    assert f"total_reserved: {memory_viz.Bytes(reserved[-1])}" in memory_viz.segsum(whole)
    assert memory_viz.trace(whole).count("cudaMalloc") == sum(change > 0 for change in changes)
    assert "snapshot.pickle" in memory_viz.trace_plot(whole)


def test_the_plan_begins_with_what_eager_needs_and_never_overlaps(profile):
    found = plan(profile)
    need = {policy.name: policy for policy in found.policies}
    sizes = profile.requested_bytes
    changes = [sizes[event] if event >= 0 else -sizes[~event] for event in profile.trace.events]
    start = min(phase.start for phase in phases(profile) if phase.step == found.step)

    assert need["eager"].peak_bytes == max(list(itertools.accumulate(changes))[start:])
    assert find_overlap(found.layout) is None
    bytes_of = {name: policy.peak_bytes for name, policy in need.items()}
    assert bytes_of["everything"] >= bytes_of["named"] >= bytes_of["eager"] >= bytes_of["in-place"]
    assert bytes_of["in-place"] == need["planned"].lower_bound_bytes <= bytes_of["planned"]
    assert need["folded"].num_kernels <= need["planned"].num_kernels
