"""cuDNN restricted to deterministic plans, whose results repeat bit for bit."""

from __future__ import annotations

from autofit_workers.spec.conv_algorithms.policy import ConvPolicy
from autofit_workers.spec.devices import GPU_KIND

POLICY = ConvPolicy(
    name="cudnn-deterministic",
    explanation="only cuDNN plans that give the same bits on every run",
    takes="the workspace of its plan",
    device_kinds=(GPU_KIND,),
    deterministic=True,
    python_lines=("torch.backends.cudnn.deterministic = True",),
)
