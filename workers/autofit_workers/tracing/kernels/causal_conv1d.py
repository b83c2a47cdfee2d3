"""Memory of causal-conv1d's operators, as of release 1.6.

All write into what they are given and take nothing beside: github.com/Dao-AILab/causal-conv1d,
causal_conv1d/cpp_functions.py and csrc/. `selective_scan` of mamba-ssm, which runs beside it, is no operator.
"""

from __future__ import annotations

from autofit_workers.tracing.kernels.registry import Kernel

KERNELS = {f"DaoAILab::_causal_conv1d_{name}_cpp": Kernel() for name in ("fwd", "bwd", "update")}
