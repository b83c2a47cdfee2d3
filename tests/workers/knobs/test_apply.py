"""Knobs are applied for the length of a trial and leave no flag changed."""

from __future__ import annotations

import pytest
import torch

from workers.errors import UnsupportedError
from workers.knobs import apply, conv
from workers.protocol import CONV_ALGOS, PRECISIONS, Knobs


def flags():
    cudnn = torch.backends.cudnn
    return {
        "enabled": cudnn.enabled,
        "benchmark": cudnn.benchmark,
        "deterministic": cudnn.deterministic,
        "convolutions in TF32": cudnn.allow_tf32,
        "matrix products in TF32": torch.backends.cuda.matmul.allow_tf32,
        "matmul precision": torch.get_float32_matmul_precision(),
    }


@pytest.mark.parametrize(
    ("conv_algo", "enabled", "benchmark", "deterministic"),
    [
        ("cudnn", True, False, False),
        ("cudnn-benchmark", True, True, False),
        ("cudnn-deterministic", True, False, True),
        ("native", False, False, False),
    ],
)
def test_a_conv_algo_sets_its_flags_and_restores_them(conv_algo, enabled, benchmark, deterministic):
    before = flags()
    with apply.applied(Knobs(conv_algo=conv_algo), "cuda"):
        during = flags()
    assert (during["enabled"], during["benchmark"], during["deterministic"]) == (
        enabled,
        benchmark,
        deterministic,
    )
    assert flags() == before


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("conv_algo", CONV_ALGOS)
def test_every_precision_keeps_tf32_in_convolutions_only(conv_algo, precision):
    with apply.applied(Knobs(conv_algo=conv_algo, precision=precision), "cuda"):
        assert flags()["convolutions in TF32"] is True
        assert flags()["matrix products in TF32"] is False


def test_flags_that_the_user_had_set_come_back_after_an_error():
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    before = flags()
    try:
        with pytest.raises(KeyError), apply.applied(Knobs(), "cuda"):
            assert flags()["matmul precision"] == "highest"
            assert flags()["benchmark"] is False
            raise KeyError
        assert flags() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.benchmark = False


@pytest.mark.parametrize("conv_algo", ["cudnn-benchmark", "cudnn-deterministic", "native"])
def test_what_does_not_apply_to_the_cpu_is_refused_with_what_does(conv_algo):
    with pytest.raises(UnsupportedError, match="use cudnn"), apply.applied(Knobs(conv_algo=conv_algo), "cpu"):
        pass


def test_every_conv_algo_of_the_protocol_is_described():
    assert tuple(conv.POLICIES) == CONV_ALGOS
    assert conv.applicable("cuda") == CONV_ALGOS
    assert conv.applicable("cpu") == ("cudnn",)


@pytest.mark.parametrize("name", CONV_ALGOS)
def test_the_lines_to_paste_do_what_the_knob_does(name):
    policy = conv.POLICIES[name]
    before = flags()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False):
        exec("\n".join(policy.python_lines), {"torch": torch})
        pasted = flags()
    with apply.applied(Knobs(conv_algo=name), "cuda"):
        assert flags() == pasted
    assert flags() == before


def test_amp_is_bfloat16_on_the_device_and_fp32_is_left_alone():
    with apply.autocast_factory(Knobs(precision="amp-bf16"), "cpu")():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16
    with apply.autocast_factory(Knobs(), "cpu")():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
