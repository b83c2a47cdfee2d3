"""Launch of a Triton kernel in compiled code, an operator of autofit's own that allocates nothing."""

from __future__ import annotations

from typing import Any

from autofit_workers.tracing.kernels import triton
from autofit_workers.tracing.kernels.registry import Kernel


def _launched(name: str, **_tensors: Any) -> None:
    triton.note_launch(name)


KERNELS = {"autofit_triton::launch": Kernel(outputs=_launched, by_name=True)}
