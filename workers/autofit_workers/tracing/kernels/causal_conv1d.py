"""Memory of causal-conv1d's operators, as of release 1.6.

All write into their arguments and need no scratch memory. Sources are causal_conv1d/cpp_functions.py and
csrc/ of github.com/Dao-AILab/causal-conv1d.
"""

from __future__ import annotations

from autofit_workers.tracing.kernels.registry import Kernel

KERNELS = {f"DaoAILab::_causal_conv1d_{name}_cpp": Kernel() for name in ("fwd", "bwd", "update")}
