"""Registry of operators of other libraries than PyTorch, by name; imports no torch.

Users' registrations go before those of a library's file here. A process that predicts one program after the
other keeps what their modules registered when they were imported, which happens once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autofit_workers.spec.trace import Scratch

# A function of a call's arguments → what the operator returns; and bytes that live during the call.
Outputs = Callable[..., Any]
ScratchOf = Callable[..., int | Sequence[int | Scratch]]

# Of PyTorch itself: their memory is known to `autofit_workers.tracing.recording.hidden`, or is
# known to be left out.
_PYTORCHS = frozenset(
    {
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "_inductor_test",
        "_native",
        "_quantized",
        "_test",
        "aten",
        "autofit",
        "c10d",
        "c10d_functional",
        "debug_mode_ops",
        "debugprims",
        "export",
        "flex_lib",
        "fsdp",
        "higher_order",
        "inductor",
        "inductor_prims",
        "mkl",
        "mkldnn",
        "mkldnn_prepacked",
        "onednn",
        "onnx",
        "onnx_symbolic",
        "prim",
        "prims",
        "profiler",
        "quantization",
        "quantized",
        "rngprims",
        "sparse",
        "static_runtime",
        "streams",
        "symm_mem",
        "torch_nn",
        "torchaudio",
        "torchvision",
    }
)
# By namespace of the operators, the module here that knows them.
_LIBRARIES = {
    "DaoAILab": "autofit_workers.tracing.kernels.causal_conv1d",
    "bitsandbytes": "autofit_workers.tracing.kernels.bitsandbytes",
    "flash_attn": "autofit_workers.tracing.kernels.flash_attn2",
    "flash_attn_3": "autofit_workers.tracing.kernels.flash_attn3",
    "quanto": "autofit_workers.tracing.kernels.quanto",
    "xformers_flash": "autofit_workers.tracing.kernels.xformers",
    "xformers_flash3": "autofit_workers.tracing.kernels.xformers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Operator of another library than PyTorch, with functions for its outputs and scratch memory.

    Attributes:
        outputs: see `autofit.register_kernel`; None where the operator has a fake function of its own.
        scratch: likewise; None where it takes nothing beside what it returns.
        by_name: whether both take the arguments by the names that the operator gives them.
    """

    outputs: Outputs | None = None
    scratch: ScratchOf | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Place in a program at which an operator is registered.

    Attributes:
        file, line: of the call.
        module: identifies the module's namespace as it is: another where the file is run again.
        is_prompt: whether it was typed, as in a notebook, where it is typed again to change it.
    """

    file: str
    line: int
    module: int
    is_prompt: bool = False

    def replaces(self, earlier: Place) -> bool:
        """Whether a registration here is the one at `earlier` executed again."""
        if self.file == earlier.file:
            return self.line == earlier.line or self.module != earlier.module
        return self.is_prompt and earlier.is_prompt


class RegisteredTwiceError(ValueError):
    """An operator is registered at two different places of one program."""


@dataclass(frozen=True, slots=True)
class _Registration:
    kernel: Kernel
    place: Place
    program: int


class Registry:
    """Registered kernels by operator name, `library::operator` or `library::operator.overload`."""

    def __init__(self) -> None:
        self._registered: dict[str, _Registration] = {}
        self._program = 0

    def begin_program(self) -> None:
        """Begins another program, whose registrations may replace earlier programs'."""
        self._program += 1

    def add(self, name: str, kernel: Kernel, place: Place) -> None:
        """Registers a kernel under an operator's name.

        Raises:
            RegisteredTwiceError: the operator is registered already, elsewhere in the program.
        """
        name = name.removesuffix(".default")  # as PyTorch itself calls it
        before = self._registered.get(name)
        if before is not None and before.program == self._program and not place.replaces(before.place):
            raise RegisteredTwiceError(f"{before.place.file}:{before.place.line}")
        self._registered[name] = _Registration(kernel, place, self._program)

    def find(self, names: Sequence[str]) -> Kernel | None:
        """Kernel registered under the first of `names` that is known; None if none is."""
        for name in names:
            if name in self._registered:
                return self._registered[name].kernel
        known = _known(names[0].partition("::")[0])
        return next((known[name] for name in names if name in known), None)


REGISTRY = Registry()  # of this process, as PyTorch's own of operators


def is_pytorchs(namespace: str) -> bool:
    """Whether the operators of a namespace are PyTorch's own."""
    return namespace in _PYTORCHS


def _known(namespace: str) -> dict[str, Kernel]:
    """Kernels of a library by operator name, from its file here, imported on demand; empty if it has none."""
    if namespace not in _LIBRARIES:
        return {}
    kernels: dict[str, Kernel] = importlib.import_module(_LIBRARIES[namespace]).KERNELS
    return kernels
