"""Memory of optimum-quanto's operators that a quantized cache runs, as of release 0.2.7.

`unpack` needs no scratch memory (library/extensions/cuda/unpack.cu). Quantization is Python code that
`autofit_workers.tracing.fake.libraries.of_quanto` runs.
"""

from __future__ import annotations

from autofit_workers.tracing.kernels.registry import Kernel

KERNELS = {"quanto::unpack": Kernel()}
