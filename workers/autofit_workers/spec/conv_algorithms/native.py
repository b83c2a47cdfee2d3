"""PyTorch's own convolution kernels, without cuDNN or oneDNN."""

from __future__ import annotations

from autofit_workers.spec.conv_algorithms.policy import ConvPolicy
from autofit_workers.spec.devices import DEVICE_KINDS

POLICY = ConvPolicy(
    name="native",
    explanation="PyTorch's own kernels, slow: columns of one sample at a time, on the CPU of the whole batch",
    takes="columns, C·filter·output of one sample, on the CPU of the whole batch",
    device_kinds=DEVICE_KINDS,
    enabled=False,
    python_lines=("torch.backends.cudnn.enabled = False",),
    lines_on_cpu=("torch.backends.mkldnn.enabled = False",),
)
