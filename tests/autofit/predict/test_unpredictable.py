"""Steps of which nothing is predicted on AMD's cards, and what is said of that."""

from __future__ import annotations

from typing import Any

import pytest

from autofit.errors import ExitCode, UnpredictableCardError
from autofit.hardware.card import card_named
from autofit.predict.unpredictable import require_predictable, why_unpredictable
from autofit_workers.spec.knobs import Knobs
from autofit_workers.spec.trace import Allocation, Category, Trace
from tests.workers.replay.plan_tables import CONVOLUTION

AMDS = card_named("mi300x")


def step(*operators: str, **changes: Any) -> Trace:
    """A step whose operators allocate a byte each."""
    allocations = tuple(
        Allocation(num_bytes=1, category=Category.ACTIVATION, operator=operator, **changes)
        for operator in operators
    )
    return Trace(
        workload="step",
        batch_size=4,
        mode="train",
        optimizer="sgd",
        knobs=Knobs(),
        allocations=allocations,
        events=tuple(range(len(allocations))),
    )


def test_a_step_that_needs_no_miopen_is_predicted():
    trace = step("aten.addmm", "aten._scaled_dot_product_flash_attention")
    assert why_unpredictable(Knobs(), trace, AMDS) is None
    require_predictable(Knobs(), trace, AMDS)


@pytest.mark.parametrize("card", ["t4", "h100-80g", None])
def test_nvidia_s_cards_predict_every_step(card):
    convolves = step("aten.convolution", "aten._cudnn_rnn", convolution=CONVOLUTION)
    assert why_unpredictable(Knobs(), convolves, card_named(card)) is None


@pytest.mark.parametrize("conv_algo", ["cudnn", "cudnn-deterministic", "mixed", "matmul-1x1"])
def test_convolutions_of_the_backend_are_refused_with_a_way_out(conv_algo):
    trace = step("aten.convolution", convolution=CONVOLUTION)
    with pytest.raises(UnpredictableCardError, match="MIOpen, whose workspaces are not known") as caught:
        require_predictable(Knobs(conv_algo=conv_algo), trace, AMDS)
    assert "name an NVIDIA card" in caught.value.message
    assert "--conv-algo native" in caught.value.message
    assert (caught.value.kind, caught.value.exit_code) == ("unsupported", ExitCode.WORKLOAD_FAILED)


@pytest.mark.parametrize("conv_algo", ["native", "im2col"])
def test_convolutions_of_pytorch_s_own_are_predicted(conv_algo):
    trace = step("aten.convolution", convolution=CONVOLUTION)
    assert why_unpredictable(Knobs(conv_algo=conv_algo), trace, AMDS) is None


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        ("aten._cudnn_rnn", "recurrent layers with MIOpen"),
        ("aten._cudnn_rnn_backward", "recurrent layers with MIOpen"),
        ("aten._scaled_dot_product_cudnn_attention", "no cuDNN for --attention cudnn"),
        ("flash_attn._flash_attn_forward", "choose another --attention"),
    ],
)
def test_what_is_nvidia_s_alone_is_refused(operator, said):
    assert said in str(why_unpredictable(Knobs(conv_algo="native"), step(operator), AMDS))
