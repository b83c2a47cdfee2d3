"""A function that is called with smaller batches until one fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import autofit
from autofit.errors import UsageError

WORKLOADS = Path(__file__).parents[1] / "tiny_workloads.py"
TOO_MANY_BYTES = 2**60  # more than any machine has: PyTorch's own error


def training(largest: int, tried: list[int]):
    """A training that runs out of memory, for real, beyond a size."""

    def train(batch_size: int, scale: int = 1) -> int:
        tried.append(batch_size)
        if batch_size > largest:
            torch.empty(TOO_MANY_BYTES, dtype=torch.uint8)
        return batch_size * scale

    return train


def test_it_begins_at_128_and_takes_a_tenth_less_each_time():
    tried: list[int] = []
    assert autofit.find_executable_batch_size(training(100, tried))() == 92
    assert tried == [128, 115, 103, 92]


def test_arguments_reach_the_function_behind_the_batch_size():
    assert autofit.find_executable_batch_size(training(200, []), starting_batch_size=16)(scale=3) == 48
    assert autofit.find_executable_batch_size(training(200, []))(2) == 256


def test_as_a_decorator_with_arguments_it_keeps_the_functions_name():
    @autofit.find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> int:
        return batch_size

    assert (train(), train.__name__) == (4, "train")


def test_the_next_call_goes_on_with_the_size_that_was_found():
    tried: list[int] = []
    train = autofit.find_executable_batch_size(training(100, tried))
    train()
    del tried[:]
    assert train() == 92
    assert tried == [92]


def test_the_users_own_reduction_decides():
    sizes = iter([10, 5, 2])
    tried: list[int] = []
    train = autofit.find_executable_batch_size(
        training(6, tried), starting_batch_size=20, reduce_batch_size_fn=lambda: next(sizes)
    )
    assert train() == 5
    assert tried == [20, 10, 5]


def test_where_no_size_is_left_it_says_so():
    with pytest.raises(RuntimeError, match="No executable batch size found, reached zero"):
        autofit.find_executable_batch_size(training(-1, []), starting_batch_size=3)()


@pytest.mark.parametrize("error", [ValueError("out of memory"), RuntimeError("shapes differ")])
def test_other_errors_are_the_callers(error):
    def train(batch_size: int) -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        autofit.find_executable_batch_size(train)()


@pytest.mark.parametrize("text", ["CUDA out of memory.", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."])
def test_a_cards_errors_mean_a_smaller_batch_too(text):
    def train(batch_size: int) -> int:
        if batch_size > 120:
            raise RuntimeError(f"{text} Tried to allocate 20.00 MiB.")
        return batch_size

    assert autofit.find_executable_batch_size(train)() == 115


def test_a_batch_size_that_the_caller_gives_is_refused():
    with pytest.raises(TypeError, match=r"first argument when called\..*`train\(scale=2\)`"):
        autofit.find_executable_batch_size(training(8, []))(64, 2)


def test_with_a_workload_the_first_try_is_the_predicted_batch():
    tried: list[int] = []
    train = autofit.find_executable_batch_size(
        training(10**9, tried), workload=f"{WORKLOADS}:small", gpu="rtx-3090"
    )
    predicted = autofit.tune(
        f"{WORKLOADS}:small", gpu="rtx-3090", probe="predict", conv_algo="cudnn", risk="likely"
    )
    assert predicted.best is not None
    assert train() == predicted.best.batch_size
    assert tried == [predicted.best.batch_size]


def test_a_prediction_is_made_at_the_first_call_and_for_a_workload_alone():
    autofit.find_executable_batch_size(training(8, []), workload="there/is/no.py:such")
    with pytest.raises(UsageError, match="gpu can only be used with workload=: give it too"):
        autofit.find_executable_batch_size(training(8, []), gpu="rtx-3090")
