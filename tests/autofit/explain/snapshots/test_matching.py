"""Real allocations beside predicted ones: a run that is the prediction, with something planted."""

from __future__ import annotations

import dataclasses

import pytest

from autofit.answers.snapshot import difference_in_words
from autofit.explain.exports.snapshot import encode_snapshot, snapshot
from autofit.explain.profile import Profile
from autofit.explain.snapshots.matching import Matched, match
from autofit.explain.snapshots.run import Run, run_of
from autofit_workers.replay.snapshots.files import unpacked
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Mark, Trace
from tests.workers.replay.snapshots.made_up import MIB

ATTENTION, LOSS = "/me/attn.py:54:forward", "/me/loss.py:12:loss"


def request(num_bytes: int, line: str, operator: str, category: Category = Category.ACTIVATION) -> Allocation:
    return Allocation(num_bytes=num_bytes, category=category, operator=operator, source=line, stack=(line,))


STEP = (
    request(2 * MIB, "/me/train.py:3:batch", "aten.randn", Category.INPUT),
    *(request((4 + number) * MIB, ATTENTION, "aten.mm") for number in range(8)),
    request(16 * MIB, "/me/model.py:20:head", "aten.mm"),
    request(512, LOSS, "aten.mean"),
)


def profile_of(step: tuple[Allocation, ...]) -> Profile:
    """Profile of two equal steps of a model with one parameter, which free all that they allocate."""
    allocations: list[Allocation] = [request(8 * MIB, "", "aten.empty", Category.PARAMETER)]
    events, marks = [0], [Mark(position=0, name="model")]
    for number in (1, 2):
        first = len(allocations)
        allocations += step
        marks.append(Mark(position=len(events), name=f"step {number} forward"))
        events += range(first, len(allocations))
        events += [~each for each in range(len(allocations) - 1, first - 1, -1)]
    trace = Trace(
        workload="toy", batch_size=1, mode="infer", optimizer="", knobs=Knobs(),
        allocations=tuple(allocations), events=tuple(events), marks=tuple(marks),
    )  # fmt: skip
    sizes = tuple(each.num_bytes for each in allocations)
    return Profile(
        trace=trace, knobs=trace.knobs, card="sm_80", architecture="sm_80", requested_bytes=sizes,
        block_bytes=sizes, context_bytes=0, peak_allocated_bytes=sum(sizes[: len(step) + 1]),
        peak_reserved_bytes=0, workspace_source="",
    )  # fmt: skip


PREDICTED = profile_of(STEP)


def recorded(step: tuple[Allocation, ...]) -> Run:
    """Run of a step that takes what `step` says."""
    document = snapshot(profile_of(step))
    return run_of(unpacked("run.pickle", encode_snapshot(document)))


def matched(step: tuple[Allocation, ...]) -> Matched:
    return match(recorded(step), PREDICTED)


def test_a_run_as_predicted_has_no_differences() -> None:
    found = matched(STEP)
    assert found.num_real == found.num_predicted == found.num_matched == len(STEP)
    assert found.matched_share == 1
    assert found.by_line
    assert (found.differences, found.before_bytes) == ((), 0)


WORKSPACE = request(16 * MIB, ATTENTION, "aten.mm", Category.WORKSPACE)
COPY = request(32 * MIB, LOSS, "aten._to_copy")


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (
            (*STEP[:3], WORKSPACE, *STEP[3:]),
            "aten.mm at attn.py:54:forward: 16.00 MiB more, workspace (1, 16.00 MiB more at the peak)",
        ),
        (
            (*STEP[:10], COPY, *STEP[10:]),
            "aten._to_copy at loss.py:12:loss: 32.00 MiB more, a copy in 32 bits "
            "(1, 32.00 MiB more at the peak)",
        ),
        (
            (*STEP[:9], dataclasses.replace(STEP[9], num_bytes=32 * MIB), STEP[10]),
            "aten.mm at model.py:20:head: 16.00 MiB more, 32 bits where 16 are predicted "
            "(1 for 1, 16.00 MiB more at the peak)",
        ),
        (
            (*STEP[:9], STEP[10]),
            "aten.mm at model.py:20:head: 16.00 MiB less, only predicted "
            "(0 for 1, 16.00 MiB less at the peak)",
        ),
    ],
    ids=["workspace", "copy", "wide", "less"],
)
def test_a_planted_difference_is_named_by_operator_and_line(step: tuple[Allocation, ...], says: str) -> None:
    found = matched(step)
    assert list(map(difference_in_words, found.differences)) == [says]


@pytest.mark.parametrize("cut", [0, 3, 9])
def test_a_record_that_begins_within_a_step_is_the_same_step(cut: int) -> None:
    turned = (*STEP[cut:], *STEP[:cut])
    found = matched(turned)
    assert (found.num_matched, found.differences) == (len(STEP), ())


def test_allocations_in_another_order_are_no_differences() -> None:
    assert matched((*STEP[:2], STEP[3], STEP[2], *STEP[4:])).differences == ()


def test_another_model_matches_little_and_ends_soon() -> None:
    other = tuple(request(MIB + 512 * number, "/me/other.py:1:forward", "aten.add") for number in range(4000))
    found = matched(other)
    assert found.matched_share < 0.1
    assert not found.by_line
