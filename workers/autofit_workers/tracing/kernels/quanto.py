"""Memory of optimum-quanto's operators that a quantized cache runs, as of release 0.2.7.

`unpack` takes nothing beside what it returns: library/extensions/cuda/unpack.cu. What quantizes is Python,
which is run (`autofit_workers.tracing.fake.libraries.of_quanto`).
"""

from __future__ import annotations

from autofit_workers.tracing.kernels.registry import Kernel

KERNELS = {"quanto::unpack": Kernel()}
