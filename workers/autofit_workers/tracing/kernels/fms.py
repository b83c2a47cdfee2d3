"""Operators of ibm-fms, whose products of experts launch kernels of Triton.

Source: fms/triton/pytorch_ops.py of release 1.13. Its backward is not written there yet and returns its
input, which is followed like the rest.
"""

from __future__ import annotations

from autofit_workers.tracing.kernels.registry import Kernel

KERNELS = {"moe::moe_mm": Kernel(runs_python=True)}
