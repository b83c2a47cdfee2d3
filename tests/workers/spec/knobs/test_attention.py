"""The knob `attention`: the kernels that a trial may take, and the lines of a script for the same."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from autofit_workers.apply.setting import applied
from autofit_workers.spec.errors import UnsupportedError
from autofit_workers.spec.knobs import KNOBS, Knobs
from autofit_workers.spec.knobs.attention import ATTENTIONS, IMPLEMENTATIONS

NAMED = [name for name in ATTENTIONS if name != "default" and name not in IMPLEMENTATIONS]
SWITCHES = torch.backends.cuda


def enabled() -> list[str]:
    """The kernels that PyTorch may take now, by the knob's names."""
    states = {
        "flash": SWITCHES.flash_sdp_enabled(),
        "efficient": SWITCHES.mem_efficient_sdp_enabled(),
        "cudnn": SWITCHES.cudnn_sdp_enabled(),
        "math": SWITCHES.math_sdp_enabled(),
    }
    return [name for name, is_on in states.items() if is_on]


@pytest.mark.parametrize("name", NAMED)
def test_a_trial_has_the_named_kernel_alone_and_afterwards_all_as_before(name: str) -> None:
    before = enabled()
    with applied(Knobs(attention=name), "cuda"):
        assert enabled() == [name]
    assert enabled() == before


def test_by_default_nothing_is_switched() -> None:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), applied(Knobs(), "cuda"):
        assert enabled() == ["math"]


@pytest.mark.parametrize("name", ["efficient", "cudnn", "fa2", "fa3"])
def test_the_cpu_refuses_kernels_that_it_has_not(name: str) -> None:
    with (
        pytest.raises(UnsupportedError, match=f"attention {name} does not apply to cpu: choose default"),
        applied(Knobs(attention=name), "cpu"),
    ):
        pass


@pytest.mark.parametrize("name", ["flash", "math"])
def test_the_cpu_runs_the_others(name: str) -> None:
    tokens = torch.randn(2, 4, 6, 8)
    with applied(Knobs(attention=name), "cpu"):
        output = functional.scaled_dot_product_attention(tokens, tokens, tokens)
    torch.testing.assert_close(output, functional.scaled_dot_product_attention(tokens, tokens, tokens))


@pytest.mark.parametrize("name", NAMED)
def test_the_lines_of_a_script_leave_the_same_kernel(name: str) -> None:
    lines = KNOBS["attention"].script_lines
    assert lines is not None
    with applied(Knobs(), "cuda"), torch.nn.attention.sdpa_kernel(list(map(_backend, NAMED))):
        exec("\n".join(lines(name)), {"torch": torch})
        assert enabled() == [name]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_an_implementation_of_transformers_leaves_pytorchs_switches_and_has_a_line_for_the_model(
    name: str,
) -> None:
    before, lines = enabled(), KNOBS["attention"].model_lines
    assert lines is not None
    with applied(Knobs(attention=name), "cuda"):
        assert enabled() == before
    assert lines(name, Knobs()) == (f'model.set_attn_implementation("{IMPLEMENTATIONS[name].name}")',)
    assert lines("flash", Knobs()) == lines("default", Knobs()) == ()


def _backend(name: str) -> torch.nn.attention.SDPBackend:
    names = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}
    return getattr(torch.nn.attention.SDPBackend, names.get(name, "MATH"))
