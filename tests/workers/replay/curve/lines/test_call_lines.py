"""What is sized at a replay, as lines of the batch size."""

from __future__ import annotations

import functools

import pytest

from autofit_workers.replay.curve.lines.call_lines import call_lines
from autofit_workers.replay.curve.lines.polynomials import NotPolynomialError, line_through
from autofit_workers.replay.spans import between
from autofit_workers.spec.trace import Allocation, Category, Scratch
from autofit_workers.spec.work import Convolution
from tests.workers.replay.plan_tables import CONVOLUTION, of_samples, variant

SIZES = (4, 6, 9)
FIT = functools.partial(line_through, SIZES)
ASKED = (1, 5, 64)


def of_convolution(call: Convolution) -> Allocation:
    return Allocation(num_bytes=0, category=Category.WORKSPACE, convolution=call)


def folded(num_samples: int) -> Convolution:
    """A convolution with filters of each sample's own, as CondConv's: the samples are groups."""
    return variant(
        input_shape=(1, num_samples * 32, 56, 56),
        weight_shape=(num_samples * 64, 32, 3, 3),
        output_shape=(1, num_samples * 64, 56, 56),
        groups=num_samples,
    )


@pytest.mark.parametrize("call_of", [of_samples, folded], ids=["by samples", "folded into the channels"])
def test_a_convolution_is_known_at_every_batch_size(call_of):
    lines = call_lines(FIT, [of_convolution(call_of(size)) for size in SIZES])
    assert [lines.at(size) for size in ASKED] == [call_of(size) for size in ASKED]


def test_the_same_layer_in_another_step_has_the_same_lines():
    once, again = (call_lines(FIT, [of_convolution(folded(size)) for size in SIZES]) for _ in range(2))
    assert once == again
    assert hash(once) == hash(again)
    other = call_lines(FIT, [of_convolution(of_samples(size)) for size in SIZES])
    assert once != other


def test_a_single_trace_gives_its_own_convolution():
    assert (
        call_lines(functools.partial(line_through, (64,)), [of_convolution(CONVOLUTION)]).at(64)
        == CONVOLUTION
    )


@pytest.mark.parametrize(
    "call_of",
    [lambda n: variant(groups=n * n), lambda n: variant(weight_shape=(64, 64, 3, 12 // n))],
    ids=["groups", "filters"],
)
def test_a_convolution_whose_dimensions_are_no_lines_is_refused(call_of):
    with pytest.raises(NotPolynomialError):
        call_lines(
            functools.partial(line_through, (2, 3, 4)), [of_convolution(call_of(size)) for size in (2, 3, 4)]
        )


def test_scratch_memory_has_lines_for_dimensions():
    def scratch(num_samples: int) -> Scratch:
        return Scratch(formula="index_backward", dimensions=(num_samples * 128, 50257), element_bytes=4)

    column = [
        Allocation(num_bytes=0, category=Category.WORKSPACE, correction="index_backward", scratch=scratch(n))
        for n in SIZES
    ]
    assert [call_lines(FIT, column).at(n) for n in ASKED] == [("index_backward", scratch(n)) for n in ASKED]


def test_an_estimated_size_has_lines_for_ends():
    column = [
        Allocation(num_bytes=500 * n, category=Category.ACTIVATION, span_bytes=(500 * n, 600 * n + 8))
        for n in SIZES
    ]
    assert [call_lines(FIT, column).at(n) for n in ASKED] == [
        between(500 * n, 500 * n, 600 * n + 8) for n in ASKED
    ]


def test_what_the_trace_itself_sizes_has_no_lines():
    assert call_lines(FIT, [Allocation(num_bytes=8 * n, category=Category.OTHER) for n in SIZES]) is None
