"""PyTorch's own kernels, without cuDNN."""

from __future__ import annotations

from workers.knobs.conv.policy import ConvPolicy

POLICY = ConvPolicy(
    name="native",
    explanation="PyTorch's own kernels; their workspace does not grow with the batch, and they are slow",
    enabled=False,
    python_lines=("torch.backends.cudnn.enabled = False",),
)
