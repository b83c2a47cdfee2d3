"""MIOpen has AMD's convolutions, and nobody knows its plans."""

from __future__ import annotations

import pytest

from autofit_workers.replay.curve.conditions import Conditions, demands, leaves_some_to_backend
from autofit_workers.replay.plans.miopen import MiopenPlans
from autofit_workers.replay.plans.workspace import native_workspace
from autofit_workers.replay.vendors import offline_source
from tests.workers.replay.plan_tables import CONVOLUTION

RELEASE = (2, 13)


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx942", "gfx950"])
def test_amd_s_cards_have_neither_a_table_nor_formulas(architecture):
    assert offline_source(architecture, "2.13.0") == MiopenPlans()


def test_a_convolution_of_the_backend_is_never_guessed():
    with pytest.raises(LookupError, match="MIOpen's plans are not known"):
        demands((CONVOLUTION,), Conditions(architecture="gfx942"), MiopenPlans(), RELEASE)


def test_pytorch_s_own_kernels_take_what_they_take_on_every_card():
    native = Conditions(architecture="gfx942", conv_algo="native")
    assert demands((CONVOLUTION,), native, MiopenPlans(), RELEASE) == (native_workspace(CONVOLUTION),)


@pytest.mark.parametrize(
    ("conv_algo", "leaves"),
    [("cudnn", True), ("cudnn-benchmark", True), ("native", False), ("im2col", False), ("mixed", True)],
)
def test_which_algorithms_need_the_backend(conv_algo, leaves):
    assert leaves_some_to_backend([CONVOLUTION], conv_algo) == leaves
    assert not leaves_some_to_backend([], conv_algo)
