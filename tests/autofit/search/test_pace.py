"""Which settings are compared without being run, and how."""

from __future__ import annotations

import pytest

from autofit.search.pace import Pace
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.protocol import HOST_ARCHITECTURE


def no_slower(faster: Knobs, slower: Knobs, architecture: str = "sm_80") -> tuple[bool, bool]:
    """Whether the first is no slower than the second, and the other way round."""
    a, b = (Pace.of(knobs, architecture) for knobs in (faster, slower))
    return a.is_no_slower_than(b), b.is_no_slower_than(a)


@pytest.mark.parametrize(
    ("faster", "slower"),
    [
        (Knobs(), Knobs(checkpointing="blocks")),
        (Knobs(precision="amp-bf16"), Knobs()),
        (Knobs(precision="tf32"), Knobs(precision="ieee-fp32")),
        (Knobs(optimizer="adam", optimizer_impl="fused"), Knobs(optimizer="adam", optimizer_impl="loop")),
        (Knobs(), Knobs(set_to_none=False)),
        (Knobs(checkpointing="selective:90"), Knobs(checkpointing="selective:10")),
        (Knobs(checkpointing="selective"), Knobs(checkpointing="every:2")),
    ],
)
def test_what_does_less_work_is_no_slower(faster: Knobs, slower: Knobs) -> None:
    assert no_slower(faster, slower) == (True, False)


def test_settings_of_which_each_is_better_in_something_are_not_ordered() -> None:
    assert no_slower(Knobs(precision="amp-bf16", checkpointing="blocks"), Knobs()) == (False, False)


@pytest.mark.parametrize(
    ("one", "other", "architecture"),
    [
        (Knobs(conv_algo="cudnn"), Knobs(conv_algo="native"), "sm_80"),
        (Knobs(memory_format="channels_last"), Knobs(), "sm_80"),
        (Knobs(optimizer="sgd"), Knobs(optimizer="adam"), "sm_80"),
        (Knobs(precision="amp-bf16"), Knobs(), "sm_75"),
        (Knobs(precision="amp-bf16"), Knobs(), HOST_ARCHITECTURE),
    ],
)
def test_what_depends_on_the_model_or_the_device_is_not_compared(
    one: Knobs, other: Knobs, architecture: str
) -> None:
    assert no_slower(one, other, architecture) == (False, False)


def test_tf32_is_nothing_before_ampere() -> None:
    assert no_slower(Knobs(precision="tf32"), Knobs(precision="ieee-fp32"), "sm_70") == (True, True)


def test_with_their_cost_convolution_algorithms_compare() -> None:
    cudnn = Pace.of(Knobs(), "sm_80", conv_cost=1.0)
    native = Pace.of(Knobs(conv_algo="native"), "sm_80", conv_cost=1.8)
    assert cudnn.is_no_slower_than(native)
    assert not native.is_no_slower_than(cudnn)


def test_of_equals_bfloat16_comes_last_before_ampere() -> None:
    fp32, bf16 = (Pace.usually(Knobs(precision=precision), "sm_75") for precision in ("fp32", "bf16"))
    assert fp32 < bf16
    assert Pace.usually(Knobs(precision="bf16"), "sm_80") < Pace.usually(Knobs(), "sm_80")
