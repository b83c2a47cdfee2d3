"""Mixed convolution: an algorithm for each layer, which a planner chooses."""

from __future__ import annotations

from autofit_workers.spec.conv_algorithms.algorithm import ConvAlgorithm
from autofit_workers.spec.devices import GPU_KIND

ALGORITHM = ConvAlgorithm(
    name="mixed",
    explanation="the cheapest algorithm for each layer with which the step stays in the budget",
    takes="what the algorithm of each layer takes",
    device_kinds=(GPU_KIND,),
    python_lines=('with autofit.apply_conv_algo(model, "mixed", plan="plan.json"):  # around forward',),
    source="Oyama et al., 2018; Shah et al., Memory optimization for deep networks (MONeT), 2021",
)

# Algorithms that a layer may get besides the device's default: few enough to try all of them.
CANDIDATES = (
    "im2col",
    "im2col-chunked:4096",
    "fft",
    "matmul-1x1",
    "chunked:1",
    "chunked:4",
    "chunked:8",
    "chunked:16",
)
