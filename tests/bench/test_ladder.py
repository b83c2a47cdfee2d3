"""Ladders of batch sizes: which sizes are tried, and what the tries that fail leave to the next ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from autofit_workers.replay.curve.conditions import Conditions, Level
from autofit_workers.replay.curve.peak_curve import PeakCurve
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Mark, Scratch, Trace
from tests.bench.ladder import runs_in_turn, steps_down
from tests.workers.replay.plan_tables import variant

MIB = 2**20
WEIGHTS = Allocation(num_bytes=40 * MIB, category=Category.PARAMETER)
HANDLE = Allocation(
    num_bytes=0,  # 8.1 MiB on the card of the conditions
    category=Category.WORKSPACE,
    correction="cublas",
    scratch=Scratch(formula="cublas", dimensions=(), element_bytes=1),
)
CONVOLUTION = variant(input_shape=(1, 64, 128, 128), output_shape=(1, 64, 128, 128))


@pytest.mark.parametrize(
    ("first", "last", "steps"),
    [
        (1024, 1024, (1024,)),
        (1024, 384, (1024, 768, 512, 384)),
        (2048, 1024, (2048, 1536, 1024)),
        (4, 1, (4, 3, 2, 1)),
    ],
)
def test_a_ladder_goes_down_to_the_size_that_ran(first: int, last: int, steps: tuple[int, ...]) -> None:
    assert steps_down(first, last) == steps


def curve(make_step: Callable[[int], tuple[Allocation, ...]], *events: int) -> PeakCurve:
    """One step after 40 MiB of weights and 4 MiB of input a sample.

    Args:
        make_step: what the step allocates at a batch size; the first is number 2.
        events: of the step.
    """

    def traced(batch_size: int) -> Trace:
        return Trace(
            workload="one step",
            batch_size=batch_size,
            mode="infer",
            optimizer="",
            knobs=Knobs(),
            allocations=(WEIGHTS, made(4 * batch_size, Category.INPUT), *make_step(batch_size)),
            events=(0, 1, *events),
            marks=(
                Mark(position=0, name="model"),
                Mark(position=1, name="step 1 input"),
                Mark(position=2, name="step 1 forward"),
            ),
        )

    return PeakCurve.through([traced(batch_size) for batch_size in (4, 6, 10)])


def made(mib: int, category: Category = Category.ACTIVATION) -> Allocation:
    return Allocation(num_bytes=mib * MIB, category=category)


def runs(of: PeakCurve, first: int, last: int, limit_mib: int) -> dict[int, bool]:
    return runs_in_turn(of.at, steps_down(first, last), Conditions(), limit_mib * MIB)


def test_what_is_smaller_lies_in_the_segment_of_the_last_input() -> None:
    of = curve(lambda batch_size: (made(2 * batch_size),), 2, ~2)
    # Of its 192 MiB the next input takes 128, and what is made of that the rest.
    assert runs(of, 48, 32, 2 * 40 + 192) == {48: False, 32: True}
    # The new model is made while there is the last one.
    assert runs(of, 48, 32, 2 * 40 + 190) == {48: False, 32: False}
    assert runs(of, 32, 32, 2 * 40 + 190) == {32: True}


def test_what_does_not_fit_there_takes_the_place_of_the_last_model() -> None:
    of = curve(lambda batch_size: (made(3 * batch_size),), 2, ~2)
    assert runs(of, 48, 32, 40 + 192 + 96) == {48: False, 32: True}
    assert runs(of, 48, 32, 40 + 192 + 94) == {48: False, 32: False}
    assert runs(of, 32, 32, 40 + 192 + 94) == {32: True}


def test_the_workspace_of_cublas_stays_in_the_segment_that_it_was_cut_from() -> None:
    of = curve(lambda batch_size: (made(10 * batch_size), HANDLE, made(20 * batch_size)), 2, ~2, 3, 4, ~4)
    # 480 MiB of the larger batch stay reserved, and the new model lies in them.
    assert runs(of, 48, 32, 192 + 480 + 640) == {48: False, 32: True}
    assert runs(of, 48, 32, 192 + 480 + 638) == {48: False, 32: False}
    assert runs(of, 32, 32, 40 + 128 + 320 + 640) == {32: True}


def test_what_is_refused_leaves_its_model_and_input_behind() -> None:
    def pooled(batch_size: int) -> tuple[Allocation, ...]:
        shape = (batch_size, 60_000_000)
        return (dataclasses.replace(made(batch_size), operator="aten.avg_pool2d", shape=shape),)

    of = curve(pooled, 2, ~2)
    assert runs(of, 48, 32, 2 * 40 + 192) == {48: False, 32: True}
    assert runs(of, 48, 32, 2 * 40 + 190) == {48: False, 32: False}


def test_gradients_are_the_last_models_too() -> None:
    of = curve(lambda batch_size: (made(30, Category.GRADIENT), made(2 * batch_size)), 2, 3, ~3)
    assert runs(of, 48, 32, 2 * 40 + 192 + 30) == {48: False, 32: True}
    assert runs(of, 48, 32, 2 * 40 + 192 + 28) == {48: False, 32: False}


def test_the_next_model_does_not_lie_among_what_the_failed_step_made() -> None:
    """Else it would keep 480 MiB, of which the next step needs 320."""
    of = curve(lambda batch_size: (made(10 * batch_size), made(40 * batch_size)), 2, 3, ~3, ~2)
    assert runs(of, 48, 32, 40 + 192 + 320 + 1280) == {48: False, 32: True}


@pytest.mark.parametrize("conv_algo", ["cudnn", "cudnn-benchmark"])
def test_a_ladder_of_one_size_is_a_process_of_its_own(conv_algo: str) -> None:
    """A convolution whose plans take copies of its maps, which it can do without."""

    def convolved(batch_size: int) -> tuple[Allocation, ...]:
        call = dataclasses.replace(CONVOLUTION.of_samples(batch_size), dtype="float16", element_bytes=2)
        workspace = Allocation(num_bytes=0, category=Category.WORKSPACE, convolution=call)
        return (made(2 * batch_size), workspace, made(batch_size))

    of, conditions = curve(convolved, 2, 3, ~3, 4, ~4, ~2), Conditions(conv_algo=conv_algo)
    limits = [mib * MIB for mib in range(200, 600, 4)]
    on_card = of.on_card(32, conditions)
    alone = [on_card.runs_within(limit, Level.LIKELY) for limit in limits]
    assert [runs_in_turn(of.at, (32,), conditions, limit)[32] for limit in limits] == alone
    assert set(alone) == {False, True}
