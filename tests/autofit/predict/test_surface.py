"""Surfaces of predicted peaks: which traces they cost, and what they say between them."""

from __future__ import annotations

import dataclasses

import pytest

from autofit.errors import UsageError
from autofit.predict.predictor import Predictor
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.setup import Setup

KNOBS = Knobs()
TEXTS = [(4, 128), (6, 128), (4, 256), (6, 256), (10, 512)]


@pytest.fixture
def sized(make_sized_worker):
    return make_sized_worker()


@pytest.fixture
def predictor(sized, workload, exact):
    return Predictor(workload, sized, residuals=exact)


def at(knobs: Knobs, size: int) -> Knobs:
    return dataclasses.replace(knobs, seq_len=size)


def test_five_traces_tell_every_batch_and_every_size_of_one_remainder(sized, predictor, card):
    surface = predictor.surface(KNOBS, card)
    peaks = {point: surface(*point).peak_allocated_bytes for point in [(3, 1024), (50, 64), (7, 4096)]}
    assert [point for point in sized.points if point[1] is not None] == TEXTS
    for (batch_size, size), peak in peaks.items():
        assert peak == predictor.estimate(at(KNOBS, size), card, batch_size).peak_allocated_bytes


def test_sizes_of_another_remainder_cost_traces_of_their_own(sized, predictor, card):
    surface = predictor.surface(KNOBS, card)
    surface(4, 1024)
    before = len(sized.points)
    surface(4, 1000)
    assert sized.points[before:] == [(batch, size + 40) for batch, size in TEXTS]


def test_one_sample_has_a_surface_of_its_own(sized, predictor, card):
    sized.shape_of = lambda batch, size: (batch, size, 4096 if batch > 1 else 1)
    surface = predictor.surface(KNOBS, card)
    for point in [(1, 2048), (2, 2048)]:
        expected = predictor.estimate(at(KNOBS, point[1]), card, point[0])
        assert surface(*point).peak_allocated_bytes == expected.peak_allocated_bytes


def test_squares_of_the_size_take_two_more_traces(sized, predictor, card):
    sized.shape_of = lambda batch, size: (batch, (size // 16) ** 2 + 1, 768)
    surface = predictor.surface(KNOBS, card)
    assert surface(3, 1024).peak_allocated_bytes == (
        predictor.estimate(at(KNOBS, 1024), card, 3).peak_allocated_bytes
    )
    assert len({point for point in sized.points if point[1] is not None}) == len(TEXTS) + 2 + 1


def test_what_is_no_polynomial_of_the_size_is_traced_at_every_size(sized, predictor, card):
    sized.shape_of = lambda batch, size: (batch, size.bit_length(), 1 << 20)
    surface = predictor.surface(KNOBS, card)
    for size in (1024, 4096):
        expected = predictor.estimate(at(KNOBS, size), card, 9).peak_allocated_bytes
        assert surface(9, size).peak_allocated_bytes == expected


def test_settings_of_several_sizes_share_their_traces(sized, predictor, card):
    settings = [at(KNOBS, size) for size in (512, 1024, 2048)]
    predictor.expect_curves(settings)
    peaks = [predictor.curve(knobs, card)(8).peak_allocated_bytes for knobs in settings]
    assert len(sized.points) == 5 + 1  # and one sample, of which the sizes are known
    assert peaks == [predictor.estimate(knobs, card, 8).peak_allocated_bytes for knobs in settings]


@pytest.mark.parametrize("point", [(0, 512), (4, 0), (4, -64)])
def test_there_is_no_point_below_1(predictor, card, point):
    with pytest.raises(UsageError, match="1 or more"):
        predictor.surface(KNOBS, card)(*point)


def test_a_global_batch_depends_on_the_batch_size(predictor, card):
    with pytest.raises(UsageError, match="--global-batch depends on the batch size"):
        predictor.surface(Knobs(global_batch=64), card)


@pytest.mark.parametrize("allows_long", [False, True])
def test_sizes_beyond_what_the_model_was_made_for_are_left_to_the_workload_to_refuse(
    make_sized_worker, workload, exact, card, allows_long
):
    worker = make_sized_worker(longest=2048)
    predictor = Predictor(workload, worker, setup=Setup(allows_long=allows_long), residuals=exact)
    predictor.surface(KNOBS, card)(4, 4096)
    assert ((4, 4096) in worker.points) is not allows_long


def test_sizes_whose_steps_differ_leave_others_their_surface(sized, predictor, card):
    sized.shape_of = lambda batch, size: (batch, size, 4096 if size <= 4096 else 8192)
    for sizes in [(512, 1024, 8192), (512, 1024, 2048)]:
        predictor.expect_curves([at(KNOBS, size) for size in sizes])
        before = len(sized.points)
        predictor.curve(at(KNOBS, sizes[-1]), card)
    assert sized.points[before:] == [(10, 2048)]  # the others are known
