"""Stand-in for `causal_conv1d_cuda`, the compiled module that causal-conv1d's operators call.

It only has to be importable: `autofit_workers.tracing.kernels.causal_conv1d` handles the operators.
"""

from __future__ import annotations

from typing import Any

__all__ = ["causal_conv1d_bwd", "causal_conv1d_fwd", "causal_conv1d_update"]


def causal_conv1d_fwd(*_args: Any) -> None:
    """Does nothing; the library's function would write into tensors among its arguments."""


causal_conv1d_bwd = causal_conv1d_update = causal_conv1d_fwd
