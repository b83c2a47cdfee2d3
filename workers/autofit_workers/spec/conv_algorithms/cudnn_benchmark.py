"""cuDNN in benchmark mode: the fastest plan, found by timing the plans."""

from __future__ import annotations

from autofit_workers.spec.conv_algorithms.policy import ConvPolicy
from autofit_workers.spec.devices import GPU_KIND

POLICY = ConvPolicy(
    name="cudnn-benchmark",
    explanation="cuDNN times its plans in the first step, which needs the most memory, and keeps the fastest",
    takes="the largest workspace among the plans that it times",
    device_kinds=(GPU_KIND,),
    benchmark=True,
    python_lines=("torch.backends.cudnn.benchmark = True",),
)
