"""Kinds of devices that a step runs on, as documents, options and PyTorch name them."""

from __future__ import annotations

GPU_KIND = "cuda"  # of every vendor so far: PyTorch built for ROCm answers to it too
DEVICE_KINDS = (GPU_KIND, "cpu")
