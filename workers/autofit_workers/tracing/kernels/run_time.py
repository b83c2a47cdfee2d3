"""CUDA kernels that a program compiles while it runs, by `torch.cuda._compile_kernel` (since PyTorch 2.9).

A kernel gets pointers and allocates nothing, so nothing is compiled here and a launch does nothing.
"""

from __future__ import annotations

from typing import Any

from autofit_workers.pytorch.cuda import KERNEL_COMPILER

_launched: dict[str, None] = {}  # names of kernels that the current program launched


class RunTimeKernel:
    """Stand-in for a compiled kernel."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_args: Any, **_options: Any) -> None:
        """Remembers the launch."""
        _launched[self._name] = None

    def set_shared_memory_config(self, _num_bytes: int) -> None:
        """Does nothing; PyTorch would tell the driver."""


def install() -> None:
    """Makes `torch.cuda` return stand-ins of kernels, in this process for good."""
    if KERNEL_COMPILER is not None:
        KERNEL_COMPILER.replace(lambda _source, kernel_name, *_args, **_options: RunTimeKernel(kernel_name))


def begin_program() -> None:
    """Forgets which kernels an earlier script or workload in this process launched."""
    _launched.clear()


def notes() -> tuple[str, ...]:
    """Note for the user that names the kernels that were launched; empty if there were none."""
    if not _launched:
        return ()
    names = ", ".join(list(_launched)[:3]) + (", …" if len(_launched) > 3 else "")
    return (f"kernels that the program compiles itself ({names}) do nothing here: they allocate nothing",)
