"""oneDNN's convolutions, PyTorch's default on the CPU where oneDNN has a kernel."""

from __future__ import annotations

from autofit_workers.spec.conv_algorithms.policy import ConvPolicy

POLICY = ConvPolicy(
    name="onednn",
    explanation="oneDNN's own choice by processor and shape, PyTorch's default on the CPU",
    takes="copies in its own layout, and scratch for each thread",
    device_kinds=("cpu",),
    python_lines=(),
    lines_on_cpu=("torch.backends.mkldnn.enabled = True  # the default",),
)
