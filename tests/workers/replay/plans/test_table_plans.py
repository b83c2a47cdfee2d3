from __future__ import annotations

import gzip
import importlib.resources
import json
import math
from collections.abc import Sequence

import pytest

from autofit_workers.replay.plans.grid_plans import GridPlans
from autofit_workers.replay.plans.plan import Plan
from autofit_workers.replay.plans.plan_table import PlanTable, file_name, held_tables, load_table
from autofit_workers.replay.plans.table_plans import TablePlans, plans_in
from autofit_workers.replay.plans.workspace import workspace
from autofit_workers.spec.conv_algorithms import ConvPolicy, cudnn, cudnn_benchmark, cudnn_deterministic
from autofit_workers.spec.work import Convolution, ConvPass
from tests.bench.plan_table_file import encoded

TENSOR = {"uses_tensor_cores": True}


def convolution(
    num_samples: int = 32,
    *,
    channels: int = 64,
    filters: int = 64,
    side: int = 56,
    width: int = 3,
    stride: int = 1,
    groups: int = 1,
    dtype: str = "float32",
    conv_pass: ConvPass = ConvPass.FPROP,
    channels_last: bool = False,
) -> Convolution:
    out_side = -(-side // stride)
    return Convolution(
        conv_pass=conv_pass,
        input_shape=(num_samples, channels, side, side),
        weight_shape=(filters, channels // groups, width, width),
        output_shape=(num_samples, filters, out_side, out_side),
        stride=(stride, stride),
        padding=(width // 2, width // 2),
        dilation=(1, 1),
        groups=groups,
        dtype=dtype,
        element_bytes={"float64": 8, "float32": 4}.get(dtype, 2),
        channels_last=channels_last,
    )


def input_bytes(call: Convolution) -> int:
    return call.element_bytes * math.prod(call.input_shape)


def both_bytes(call: Convolution) -> int:
    return input_bytes(call) + call.element_bytes * math.prod(call.output_shape)


def table(*rows: tuple[Convolution, tuple[Plan, ...]]) -> PlanTable:
    return PlanTable.from_bytes(encoded("9.20.0", rows))


def first_bytes(source: PlanTable, call: Convolution) -> int:
    return plans_in(source, call)[0].workspace_bytes


def test_a_call_in_the_table_gets_its_own_plans_back_in_their_order():
    call = convolution()
    fastest = Plan(46, both_bytes(call), uses_tensor_cores=True)
    wobbly = Plan(25, 0, is_deterministic=False)
    plain, largest = Plan(0, 0), Plan(41, 2 * both_bytes(call), uses_tensor_cores=True)

    found = plans_in(table((call, (fastest, wobbly, plain, largest))), call)

    without_engines = [plan._replace(engine=0) for plan in found]
    expected = [plan._replace(engine=0) for plan in (fastest, wobbly, plain, largest)]
    assert without_engines == expected


def test_plans_that_no_policy_takes_are_left_out():
    call = convolution()
    first, middle = Plan(46, 0, **TENSOR), Plan(36, both_bytes(call), **TENSOR)
    last = Plan(41, 2 * both_bytes(call), **TENSOR)

    found = plans_in(table((call, (first, middle, last))), call)

    assert [plan.workspace_bytes for plan in found] == [0, 2 * both_bytes(call)]


@pytest.mark.parametrize("policy", [cudnn.POLICY, cudnn_benchmark.POLICY, cudnn_deterministic.POLICY])
@pytest.mark.parametrize("allow_tf32", [True, False])
def test_every_policy_gets_the_workspace_that_the_whole_list_gives(policy: ConvPolicy, allow_tf32: bool):
    call = convolution()
    size = both_bytes(call)
    plans = (
        Plan(1, size, is_deterministic=False, uses_tensor_cores=True),
        Plan(2, 2 * size, **TENSOR),
        Plan(3, size // 2, is_deterministic=False),
        Plan(4, size),
        Plan(5, 3 * size, **TENSOR),
        Plan(6, 2 * size),
        Plan(7, 0),
    )

    whole = workspace(call, plans, policy, allow_tf32=allow_tf32)
    ours = workspace(call, plans_in(table((call, plans)), call), policy, allow_tf32=allow_tf32)

    assert (ours.likely_bytes, ours.high_bytes) == (whole.likely_bytes, whole.high_bytes)
    assert ours.worst_bytes == pytest.approx(whole.worst_bytes, rel=0.05)


def test_copies_grow_with_the_batch():
    known = convolution(32)
    asked = convolution(50)

    source = table((known, (Plan(46, both_bytes(known)),)))

    assert first_bytes(source, asked) == both_bytes(asked)


def test_copies_follow_the_tensors_of_another_shape():
    known = convolution(channels=64, filters=128)
    asked = convolution(channels=128, filters=96, side=40)

    source = table((known, (Plan(38, input_bytes(known)),)))

    assert first_bytes(source, asked) == pytest.approx(input_bytes(asked), rel=0.02)


def test_copies_of_few_channels_are_filled_up_to_whole_vectors():
    known, asked = convolution(channels=3, side=224), convolution(channels=3, side=112)

    source = table((known, (Plan(38, input_bytes(known) * 4 // 3),)))

    assert first_bytes(source, asked) == pytest.approx(input_bytes(asked) * 4 / 3, rel=0.01)


def test_of_two_batches_the_nearer_one_tells():
    small, large = convolution(8), convolution(128)
    source = table((small, (Plan(1, 0),)), (large, (Plan(2, both_bytes(large)),)))

    assert first_bytes(source, convolution(12)) == 0
    assert first_bytes(source, convolution(100)) == both_bytes(convolution(100))


def test_tables_of_the_same_calls_each_give_their_own_plans_of_the_nearest():
    small, large = convolution(8), convolution(128)
    both, none = both_bytes(large), 0
    one = table((small, (Plan(1, none),)), (large, (Plan(2, both),)))
    other = table((small, (Plan(2, both_bytes(small)),)), (large, (Plan(1, none),)))
    fewer = table((small, (Plan(1, none),)))

    asked = convolution(100)
    assert [first_bytes(each, asked) for each in (one, other, fewer)] == [both_bytes(asked), none, none]


def test_plans_of_other_copies_are_not_mixed_between_two_batches():
    class Source:
        name = "table"
        knows_the_order = True

        def plans(self, calls: Sequence[Convolution]) -> list[tuple[Plan, ...]]:
            return [plans_in(source, call) for call in calls]

    small, large = convolution(64), convolution(96)
    source = table((small, (Plan(1, 0),)), (large, (Plan(1, both_bytes(large)),)))

    (found,) = GridPlans(Source()).plans([convolution(90)])

    assert found[0].workspace_bytes == both_bytes(convolution(90))


def test_neighbours_are_of_the_same_kind_where_there_are_any():
    dense, grouped = convolution(), convolution(channels=256, filters=256, groups=32)
    source = table((dense, (Plan(1, both_bytes(dense)),)), (grouped, (Plan(2, 0),)))

    assert first_bytes(source, convolution(channels=512, filters=512, groups=64)) == 0


def test_the_table_is_searched_for_the_most_alike_kind_where_one_is_missing():
    strided = convolution(stride=2)
    other_pass = convolution(conv_pass=ConvPass.WGRAD)
    source = table((other_pass, (Plan(1, 0),)), (strided, (Plan(2, both_bytes(strided)),)))

    assert first_bytes(source, convolution()) == both_bytes(convolution())


def test_doubles_have_no_plans_for_the_tensor_cores_of_floats_and_the_smallest_first():
    known, asked = convolution(), convolution(dtype="float64")
    plans = (Plan(1, both_bytes(known), **TENSOR), Plan(2, input_bytes(known)), Plan(3, 0))

    found = plans_in(table((known, plans)), asked)

    assert [plan.workspace_bytes for plan in found] == [0, input_bytes(asked)]


def test_a_file_of_another_schema_is_refused():
    with pytest.raises(ValueError, match="expected a table of schema"):
        PlanTable({"schema": "autofit.plans/0"})


def test_every_table_that_is_shipped_plans_every_type_and_pass():
    calls = [
        convolution(dtype=dtype, conv_pass=conv_pass, channels_last=channels_last)
        for dtype in ("float32", "float16", "bfloat16", "float64")
        for conv_pass in ConvPass
        for channels_last in (False, True)
    ]
    for capability, version in held_tables():
        found = TablePlans(f"sm_{capability}", version).plans(calls)
        assert all(found)


def test_the_tables_are_small():
    data = importlib.resources.files("autofit_workers.replay").joinpath("data")
    assert sum(len(entry.read_bytes()) for entry in data.iterdir()) <= 3_000_000


@pytest.mark.parametrize(
    ("channels", "filters", "output_is_copied"),
    [
        (128, 132, False),
        (130, 128, False),
        (200, 232, False),
        (128, 130, True),
        (130, 130, True),
        (200, 230, True),
    ],
)
def test_outputs_are_copied_where_filters_fill_no_whole_vectors(
    channels: int, filters: int, output_is_copied: bool
):
    # cuDNN 9.20 for an A100: the kernel of TF32 that it prefers copies the input, of whatever channels, and
    # writes the output in place if its filters are a multiple of four; else it copies that, too.
    call = convolution(32, channels=channels, filters=filters, side=36)
    (plans,) = TablePlans("sm_80", (9, 20)).plans([call])
    maps_bytes = both_bytes(call) if output_is_copied else input_bytes(call)
    weight_bytes = 4 * math.prod(call.weight_shape)
    assert plans[0].workspace_bytes == pytest.approx(maps_bytes + weight_bytes, rel=0.05)


def test_every_table_that_is_shipped_holds_uneven_convolutions_of_either_filter_in_its_types():
    folder = importlib.resources.files("autofit_workers.replay").joinpath("data")
    for capability, version in held_tables():
        content = json.loads(gzip.decompress(folder.joinpath(file_name(capability, version)).read_bytes()))
        geometries = list(zip(*content["geometries"], strict=True))
        forwards = {key: found for key, found in content["answers"].items() if key.endswith("nchw")}
        assert forwards
        for question, by_samples in forwards.items():
            held = [g for g, number in zip(geometries, by_samples["32"], strict=True) if number >= 0]
            for kind in ("1x1 dense unit", "3x3 dense unit"):
                shape = content["shapes"].index(kind)
                uneven = [g for g in held if g[0] == shape and g[1] % 8 and g[2] % 8 and g[1] > 3]
                assert len(uneven) >= 8, (capability, version, question, kind)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_uneven_call_takes_the_plans_of_a_farther_uneven_one(dtype: str):
    even = convolution(channels=64, filters=64, dtype=dtype)
    near, far = (convolution(channels=64, filters=filters, dtype=dtype) for filters in (62, 31))
    larger = convolution(channels=64, filters=128, dtype=dtype)
    source = table((even, (Plan(0, 0),)), (far, (Plan(0, 0, uses_tensor_cores=True),)))

    assert plans_in(source, near)[0].uses_tensor_cores
    assert not plans_in(source, larger)[0].uses_tensor_cores


def test_a_convolution_of_vgg_takes_the_plans_that_cudnn_gives_it():
    # cuDNN 9.20 for an A100, asked for the second convolution of VGG: TF32 kernels on copies of both maps.
    call = convolution(32, channels=64, filters=64, side=224, conv_pass=ConvPass.WGRAD)

    (found,) = TablePlans("sm_80", (9, 20)).plans([call])

    assert found[0].uses_tensor_cores
    # What is left over is rounded up to 2 % of all tensors.
    assert both_bytes(call) <= found[0].workspace_bytes <= 1.025 * both_bytes(call)


def test_a_t4_has_no_tensor_cores_for_floats():
    (found,) = TablePlans("sm_75").plans([convolution()])

    assert not any(plan.uses_tensor_cores for plan in found)


def test_a_new_architecture_gets_the_newest_older_one_and_says_so():
    plans = TablePlans("sm_87", (9, 20))

    assert plans.name == "table of cuDNN 9.20, for sm_86"
    assert plans.plans([convolution()]) == TablePlans("sm_86", (9, 20)).plans([convolution()])


def test_an_architecture_older_than_the_table_is_refused():
    with pytest.raises(ValueError, match="begins with sm_70 and has nothing for sm_61"):
        TablePlans("sm_61")


def test_the_version_is_that_of_the_wheel():
    assert TablePlans.for_torch("2.13.0+cu130", "sm_80").name == "table of cuDNN 9.20"


def test_an_older_pytorch_gets_the_oldest_table():
    assert TablePlans.for_torch("2.5.1", "sm_80").name.startswith("table of cuDNN 9.8")


def test_a_version_without_a_table_gets_the_nearest_and_says_so():
    assert TablePlans("sm_80", (9, 19)).name == "table of cuDNN 9.20, nearest to 9.19"


def test_a_source_can_be_compared_and_hashed():
    assert {TablePlans("sm_80"), TablePlans("sm_80")} == {TablePlans("sm_80")}
    assert TablePlans("sm_80").knows_the_order


def test_a_table_is_loaded_once():
    assert load_table(80, (9, 20)) is load_table(80, (9, 20))
