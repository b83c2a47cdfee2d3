"""The four views of a profile that can be followed by hand, and what they show of it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from autofit.errors import UsageError
from autofit.explain.views.code import code_view
from autofit.explain.views.filters import NothingMatchesError, parse_filters
from autofit.explain.views.ops import operator_view
from autofit.explain.views.scopes import scope_view
from autofit.explain.views.tensors import tensor_view

ALL = parse_filters()
VIEWS = (operator_view, scope_view, code_view, tensor_view)


def tree(view):
    """Indented names with the bytes asked for: own/with all below."""
    return [
        f"{'  ' * row.depth}{row.name} {row.own.requested_bytes}/{row.sizes.requested_bytes}"
        for row in view.rows
    ]


def test_operators_are_told_apart_by_phase_with_shares_as_tfprof_has_them(profile):
    rows = operator_view(profile, ALL).rows
    assert [(row.name, row.phase, row.sizes.requested_bytes, row.sizes.count) for row in rows] == [
        ("relu", "forward", 4200, 3),
        ("randn", "input", 2000, 1),
        ("empty_strided", "model", 1000, 1),
        ("relu", "backward", 1000, 1),
    ]
    assert [row.cumulative_share for row in rows] == [1.0, 4000 / 8200, 2000 / 8200, 1000 / 8200]
    assert [row.share for row in rows] == [4200 / 8200, 2000 / 8200, 1000 / 8200, 1000 / 8200]
    assert [row.sizes.peak_bytes for row in rows] == [4096 + 1024, 2048, 1024, 0]


def test_the_module_tree_has_own_and_total(profile):
    assert tree(scope_view(profile, ALL)) == [
        "toy 2000/8200",
        "  body 0/5700",
        "    body.conv 5700/5700",
        "  head 500/500",
    ]
    assert [row.sizes.peak_bytes for row in scope_view(profile, ALL).rows] == [8192, 6144, 6144, 0]


def test_lines_of_code_are_a_tree_without_those_of_libraries(profile):
    lines = tree(code_view(profile, ALL))
    assert lines == [
        "toy 0/8200",
        "  /me/train.py:9:loss 0/4500",
        "    /me/net.py:4:forward 4000/4000",
        "    /me/net.py:5:forward 500/500",
        "  /me/train.py:3:batch 2000/2000",
        "  (model) 1000/1000",
        "  (forward) 700/700",
    ]
    with_libraries = tree(code_view(profile, parse_filters(libraries=True)))
    assert with_libraries[2:4] == [
        "    /me/net.py:4:forward 0/4000",
        "      torch/nn/functional.py:70:relu 4000/4000",
    ]


def test_tensors_have_names_shapes_and_lifetimes(profile):
    rows = tensor_view(profile, ALL).rows
    assert [(row.name, row.shape, row.num_elements, row.element_bytes) for row in rows] == [
        ("body.conv/relu:0", (4, 375), 1500, 2),
        ("input:0", (4, 125), 500, 4),
        ("body.conv.weight", (250,), 250, 4),
        ("body.conv.weight.grad", (250,), 250, 4),
        ("body.conv/relu:workspace", (), 700, 1),
        ("head/relu:0", (4, 125), 500, 1),
    ]
    assert [(row.variable, row.born, row.freed) for row in rows[:3]] == [
        ("x", "step 1 forward", "step 1 backward"),
        ("", "step 1 input", "step 1 backward"),
        ("", "model", ""),
    ]


def test_an_operator_that_a_module_calls_again_is_numbered(profile):
    again = dataclasses.replace(profile.trace.allocations[4], module="body.conv")
    allocations = (*profile.trace.allocations[:4], again, *profile.trace.allocations[5:])
    twice = dataclasses.replace(profile, trace=dataclasses.replace(profile.trace, allocations=allocations))
    names = [row.name for row in tensor_view(twice, ALL).rows]
    assert "body.conv/relu:0" in names
    assert "body.conv/relu_1:0" in names


@pytest.mark.parametrize("make", VIEWS)
@pytest.mark.parametrize("step", [None, 1, 2])
def test_every_view_adds_up_to_the_allocated_peak(make, step, profile, plain_profile):
    for each in (profile, plain_profile):
        view = make(each, parse_filters(step=step))
        assert view.total.peak_bytes == each.peak_allocated_bytes == 8192
        if view.kind in ("ops", "tensors"):
            assert sum(row.sizes.peak_bytes for row in view.rows) == 8192
        else:
            assert sum(row.own.peak_bytes for row in view.rows) == view.rows[0].sizes.peak_bytes == 8192


def test_building_the_model_is_step_0(profile):
    view = tensor_view(profile, parse_filters(step=0))
    assert [row.name for row in view.rows] == ["body.conv.weight"]
    assert view.selection.peak_allocated_bytes == 1024


@pytest.mark.parametrize("make", VIEWS)
def test_the_document_has_the_rows_and_what_they_are_of(make, profile):
    view = make(profile, ALL)
    document = json.loads(view.to_json())
    assert document["schema"] == "autofit.profile-view/1"
    assert (document["view"], document["workload"], document["step"]) == (view.kind, "toy", 1)
    total = document["total"]
    assert (total["requested_bytes"], total["peak_bytes"], total["count"]) == (8200, 8192, 6)
    assert document["peak_allocated_bytes"] == document["step_peak_allocated_bytes"] == 8192
    assert len(document["rows"]) == document["num_passing"] == len(view.rows)
    assert {"name", "requested_bytes", "peak_bytes", "count"} <= document["rows"][0].keys()


# ── filters ─────────────────────────────────────────────────────────────────────────────────────


def names(view):
    return [row.name for row in view.rows]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("bytes", ["body.conv/relu:0", "input:0", "body.conv.weight"]),
        ("peak-bytes", ["body.conv/relu:0", "input:0", "body.conv.weight"]),
        ("count", ["body.conv.weight", "body.conv.weight.grad", "body.conv/relu:0"]),
        ("name", ["body.conv.weight", "body.conv.weight.grad", "body.conv/relu:0"]),
    ],
)
def test_rows_are_ordered_and_the_first_ones_kept(order, expected, profile):
    view = tensor_view(profile, parse_filters(order_by=order, top=3))
    assert names(view) == expected
    assert view.num_passing == 6


def test_rows_are_shown_and_hidden_by_name_and_size_without_changing_shares(profile):
    (row,) = operator_view(
        profile, parse_filters(show_name_regex=["relu"], hide_name_regex=["^rel.x"], min_bytes="3000")
    ).rows
    assert (row.name, row.phase, row.share) == ("relu", "forward", 4200 / 8200)


def test_a_category_chooses_what_a_view_is_made_of(profile):
    view = scope_view(profile, parse_filters(category="gradient,parameter"))
    assert tree(view) == ["toy 0/2000", "  body 0/2000", "    body.conv 2000/2000"]
    assert view.total.peak_bytes == 1024


def test_a_tree_can_start_further_down_end_early_and_leave_nodes_out(profile):
    assert tree(scope_view(profile, parse_filters(start_name_regex=["conv$"]))) == [
        "toy 0/5700",
        "  body.conv 5700/5700",
    ]
    assert tree(scope_view(profile, parse_filters(max_depth=1))) == [
        "toy 2000/8200",
        "  body 0/5700",
        "  head 500/500",
    ]
    assert tree(scope_view(profile, parse_filters(max_depth=0))) == ["toy 2000/8200"]
    assert tree(scope_view(profile, parse_filters(hide_name_regex=["^body$"]))) == [
        "toy 2000/8200",
        "  body.conv 5700/5700",
        "  head 500/500",
    ]
    assert tree(scope_view(profile, parse_filters(min_bytes="501B"))) == [
        "toy 2000/8200",
        "  body 0/5700",
        "    body.conv 5700/5700",
    ]


def test_the_largest_nodes_of_a_tree_come_with_those_above_them(profile):
    view = scope_view(profile, parse_filters(top=1))
    assert names(view) == ["toy", "body", "body.conv"]
    assert view.num_passing == 4


@pytest.mark.parametrize("make", VIEWS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"show_name_regex": ["nowhere"]}, "--show-name-regex 'nowhere'"),
        ({"min_bytes": "1T"}, "--min-bytes"),
        ({"category": "optimizer-state"}, "--category optimizer_state"),
        ({"device": "cuda:1"}, "--device 'cuda:1': the profile has cuda:0"),
    ],
)
def test_a_filter_that_matches_nothing_is_an_error_that_names_it(make, given, said, profile):
    with pytest.raises(NothingMatchesError) as caught:
        make(profile, parse_filters(**given))
    assert said in caught.value.message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("make", [scope_view, code_view])
def test_a_start_that_no_node_has_is_an_error_too(make, profile):
    with pytest.raises(NothingMatchesError, match="--start-name-regex 'nowhere'"):
        make(profile, parse_filters(start_name_regex=["nowhere"]))


@pytest.mark.parametrize("make", [operator_view, tensor_view])
@pytest.mark.parametrize("given", [{"start_name_regex": ["relu"]}, {"max_depth": 2}])
def test_lists_take_no_filters_of_trees(make, given, profile):
    with pytest.raises(UsageError, match="apply to trees"):
        make(profile, parse_filters(**given))


def test_a_step_that_was_not_traced_is_an_error_that_names_those_that_were(profile):
    with pytest.raises(UsageError, match="no step 9; choose from 0, 1, 2"):
        operator_view(profile, parse_filters(step=9))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"start_name_regex": ["("]}, "--start-name-regex: '(' is not a valid regular expression"),
        ({"show_name_regex": ["a", "[z"]}, "--show-name-regex: '[z' is not a valid regular expression"),
        ({"hide_name_regex": ["*"]}, "--hide-name-regex: '*' is not a valid regular expression"),
        ({"device": "+"}, "--device: '+' is not a valid regular expression"),
        ({"order_by": "size"}, "--order-by: unknown name 'size'; choose from bytes, peak-bytes, count"),
        ({"select": "bytes,peak"}, "--select: unknown name 'peak'"),
        ({"category": "activations"}, "Did you mean activation?"),
        ({"min_bytes": "many"}, "--min-bytes: 'many' is not a size"),
    ],
)
def test_a_filter_that_means_nothing_is_an_error_that_names_the_option(given, said):
    with pytest.raises(UsageError) as caught:
        parse_filters(**given)
    assert said in caught.value.message
