"""Plans of a step: what each policy needs, and that a plan gives every operator what it reads."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given

from autofit.errors import UsageError
from autofit.explain.profile import Profile
from autofit.explain.views.folding import chain_ends, fold_chains
from autofit.explain.views.memory_plan import plan_memory
from autofit.explain.views.packing import pack
from autofit.explain.views.plan import plan
from autofit.explain.views.step_graph import StepGraph, step_graph
from autofit.hardware.card import Card
from autofit.predict.predictor import local_predictor
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import WorkloadRef
from autofit_workers.spec.trace import Category
from tests.autofit.explain.profiles import allocation, profile_of
from tests.autofit.explain.programs import Program, programs


def needs(profile: Profile, step: int | None = None) -> dict[str, int]:
    return {policy.name: policy.peak_bytes for policy in plan(profile, step).policies}


def kernels(profile: Profile) -> tuple[int, int]:
    """Before and after folding."""
    counts = {policy.name: policy.num_kernels for policy in plan(profile).policies}
    return counts["planned"], counts["folded"]


# ── the toy of "Symbolic programs" ──────────────────────────────────────────────────────────────

_TOY = """
import torch
from torch import nn
from autofit_workers.workload import Workload


def program(model, batch):
    a = torch.ones(10, dtype=torch.float64, device="cuda")
    b = torch.ones(10, dtype=torch.float64, device="cuda") * 2
    c = b * a
    d = c + 1
    assert d.shape == (10,)
    return d


toy = Workload(
    build_model=nn.Identity,
    make_batch=lambda batch_size, device: torch.ones(batch_size, 1),
    loss=program,
    optimizer="sgd",
    mode="infer",
)
"""
TOY_BYTES = {"everything": 400, "named": 320, "eager": 320, "in-place": 160, "planned": 160, "folded": 160}


def test_the_toy_needs_half_when_it_is_planned(tmp_path):
    path = tmp_path / "toy.py"
    path.write_text(_TOY)
    predictor = local_predictor(WorkloadRef(kind="file", target=f"{path}:toy"), with_calls=True)
    profile = predictor.profile(Knobs(), Card(name="t4", architecture="sm_75", context_bytes=0), 4)

    found = plan(profile)

    assert needs(profile) == TOY_BYTES
    assert (found.num_unnamed, found.unnamed_bytes) == (1, 80)
    assert kernels(profile) == (5, 3)


def toy() -> Program:
    program = Program()
    a, temporary = program.make(10, name="a"), program.make(10)
    b = program.make(10, temporary, name="b", elementwise=True)
    program.free(temporary)
    c = program.make(10, b, a, name="c", elementwise=True)
    program.make(10, c, name="d", elementwise=True)
    program.free(a, b, c)
    return program


def test_the_toy_written_by_hand_comes_to_the_same():
    assert needs(toy().profile()) == TOY_BYTES
    assert kernels(toy().profile()) == (5, 3)


# ── the policies ────────────────────────────────────────────────────────────────────────────────


def test_what_lives_through_the_step_is_part_of_every_number():
    program = Program()
    weight = program.make(100, category=Category.PARAMETER)
    program.mark("step 1 forward")
    program.make(5, weight)

    assert set(needs(program.profile()).values()) == {840}


def test_an_input_is_kept_and_never_overwritten():
    program = Program()
    batch = program.make(10, category=Category.INPUT)
    program.make(10, batch, elementwise=True)
    program.free(batch)

    assert needs(program.profile())["planned"] == 160


@pytest.mark.parametrize(
    ("num_elements", "dtype", "elementwise", "reads_later", "expected"),
    [
        (10, "float64", True, False, 80),
        (5, "float64", True, False, 80),
        (12, "float64", True, False, 176),
        (20, "float32", True, False, 160),
        (10, "float64", False, False, 160),
        (10, "float64", True, True, 160),
    ],
    ids=["same", "smaller", "larger", "other element size", "not element-wise", "still read"],
)
def test_a_result_takes_the_place_of_an_input_only_where_that_is_legal(
    num_elements, dtype, elementwise, reads_later, expected
):
    program = Program()
    first = program.make(10)
    second = program.make(num_elements, first, elementwise=elementwise, dtype=dtype)
    if reads_later:
        program.change(second, first, elementwise=False)
    program.free(second, first)

    assert needs(program.profile())["in-place"] == expected


def test_a_value_viewed_after_its_last_reader_is_not_dropped():
    program = Program()
    first = program.make(10)
    program.make(3, first)
    program.view(first)
    program.make(10)
    program.free(first)

    assert needs(program.profile())["in-place"] == 184


def test_a_workspace_counts_while_its_operator_runs():
    program = Program()
    program.make(10)
    program.allocations.append(allocation(1000, Category.WORKSPACE, dtype="", shape=()))
    program.events += [1, ~1]
    program.make(20)

    assert set(needs(program.profile()).values()) == {1080, 1240}
    assert needs(program.profile())["everything"] == 1240


def test_the_last_step_is_planned_unless_another_is_asked_for():
    program = Program()
    for step, size in ((1, 10), (2, 20)):
        program.mark(f"step {step} forward")
        program.free(program.make(size))

    assert needs(program.profile())["eager"] == 160
    assert needs(program.profile(), step=1)["eager"] == 80


def test_calls_in_place_at_the_end_of_a_step_belong_to_it():
    program = Program()
    weight = program.make(10, category=Category.PARAMETER)
    for step in (1, 2):
        program.mark(f"step {step} forward")
        gradient = program.make(10, weight)
        program.free(gradient)
        program.change(weight)
    counts = [plan(program.profile(), step).policies[0].num_kernels for step in (1, 2)]

    assert counts == [2, 2]


# ── folding ─────────────────────────────────────────────────────────────────────────────────────


def chain(*, between: str = "") -> Program:
    """Two element-wise operators after another, with something between them."""
    program = Program()
    source = program.make(10)
    other = program.make(10)
    middle = program.make(10, source, elementwise=True)
    if between == "a product":
        program.make(10, other)
    if between == "a change of the source":
        program.change(source)
    if between == "a view":
        program.view(middle)
    if between == "another reader":
        program.make(10, middle, elementwise=True)
    program.make(20 if between == "a larger result" else 10, middle, elementwise=True)
    program.free(middle)
    return program


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("", (4, 3)),
        ("a product", (5, 5)),
        ("a change of the source", (5, 5)),
        ("a view", (4, 4)),
        ("another reader", (5, 5)),
        ("a larger result", (4, 4)),
    ],
)
def test_a_chain_is_folded_only_where_nobody_could_tell(between, expected):
    assert kernels(chain(between=between).profile()) == expected


def test_operators_in_place_on_a_temporary_are_one_kernel_with_their_reader():
    program = Program()
    state = program.make(10, category=Category.OPTIMIZER_STATE)
    weight = program.make(10, category=Category.PARAMETER)
    program.mark("step 1 optimizer")
    root = program.make(10, state, elementwise=True)
    program.change(root)
    program.change(root)
    program.change(weight, root)
    program.free(root)

    assert kernels(program.profile()) == (4, 1)
    assert needs(program.profile()) == {
        **dict.fromkeys(("everything", "named", "eager", "in-place", "planned"), 240),
        "folded": 160,
    }


def test_a_value_that_ends_with_its_chain_lies_beside_what_is_read_later():
    program = Program()
    weight = program.make(1, category=Category.PARAMETER)
    program.mark("step 1 forward")
    for _ in range(3):
        program.free(program.make(1, weight))
    kept = program.make(1, weight)
    chained = program.make(1, weight, elementwise=True)
    program.change(chained)
    program.free(chained)
    program.make(1, weight)
    program.make(1, kept, elementwise=True)

    assert_runs(fold_chains(step_graph(program.profile())))


# ── properties ──────────────────────────────────────────────────────────────────────────────────


@given(programs())
def test_each_policy_needs_no_more_than_the_one_before(program):
    profile = program.profile()
    policies = {policy.name: policy for policy in plan(profile).policies}
    need = {name: policy.peak_bytes for name, policy in policies.items()}

    assert need["everything"] >= need["named"] >= need["eager"] >= need["in-place"]
    assert need["in-place"] == policies["planned"].lower_bound_bytes <= need["planned"] <= need["everything"]
    assert policies["folded"].lower_bound_bytes <= need["folded"]
    assert policies["folded"].num_kernels <= policies["planned"].num_kernels


@given(programs())
def test_eager_is_the_live_peak_of_the_trace(program):
    profile = program.profile()
    graph = step_graph(profile)
    sizes = profile.requested_bytes
    changes = [sizes[event] if event >= 0 else -sizes[~event] for event in profile.trace.events]
    live = list(itertools.accumulate(changes))
    peak = max(live[graph.start :], default=live[-1])

    assert needs(profile)["eager"] == peak


@given(programs())
def test_what_an_operator_reads_is_where_the_plan_put_it(program):
    graph = step_graph(program.profile())
    assert_runs(graph)
    assert_runs(fold_chains(graph))


def assert_runs(graph: StepGraph) -> None:
    """Follows the kernels through the planned arena, writing down who lies where."""
    packed = pack(graph)
    layout = plan_memory(packed.buffers)
    held: dict[int, tuple[int, int]] = {}  # by value, the bytes that it lies in

    def span_of(number: int) -> tuple[int, int]:
        start = layout.offsets[packed.holders[number]]
        return start, start + graph.values[number].num_bytes

    for number, value in graph.values.items():
        if value.start == graph.start:
            held[number] = span_of(number)
    for kernel in graph.kernels:
        for number in kernel.reads:
            assert number not in graph.values or number in held
        for number in kernel.makes:
            first, end = span_of(number)
            for other in [n for n, (start, stop) in held.items() if start < end and first < stop]:
                assert other not in kernel.reads or kernel.is_elementwise
                del held[other]
            held[number] = first, end


@given(programs())
def test_a_folded_kernel_reads_what_it_would_have_read_at_its_own_time(program):
    graph = step_graph(program.profile())
    ends = chain_ends(graph)

    for index, kernel in enumerate(graph.kernels):
        end = ends[index]
        for number in kernel.reads:
            seen = {i for i, other in enumerate(graph.kernels[:index]) if number in other.writes}
            # By its end: what ran before, and of its own chain what comes before it.
            seen_there = {
                i
                for i, other in enumerate(graph.kernels)
                if number in other.writes and (ends[i] < end or (ends[i] == end and i < index))
            }
            assert seen == seen_there


# ── what cannot be planned ──────────────────────────────────────────────────────────────────────


def test_a_profile_without_calls_is_refused():
    with pytest.raises(UsageError, match="does not contain: save it again"):
        plan(profile_of([allocation(10)], [0]))


def test_a_step_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="no step 9"):
        plan(toy().profile(), step=9)
