"""cuDNN's convolutions by its own heuristic, PyTorch's default on CUDA."""

from __future__ import annotations

from autofit_workers.spec.conv_algorithms.policy import ConvPolicy
from autofit_workers.spec.devices import GPU_KIND

POLICY = ConvPolicy(
    name="cudnn",
    explanation="cuDNN's first choice by heuristic; near the limit it moves to a smaller, slower plan",
    takes="the workspace of its plan",
    device_kinds=(GPU_KIND,),
    python_lines=(
        "torch.backends.cudnn.benchmark = False  # the default",
        "torch.backends.cudnn.deterministic = False  # the default",
    ),
)
