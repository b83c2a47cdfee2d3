"""Registry of operators of other libraries than PyTorch, by name; imports no torch.

Users' registrations take precedence over those in this folder. A process that predicts several programs keeps
all registrations, because modules that register operators are imported only once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autofit_workers.spec.trace import Scratch

# Functions of a call's arguments that return the operator's outputs, and bytes of scratch memory.
Outputs = Callable[..., Any]
ScratchOf = Callable[..., int | Sequence[int | Scratch]]

# Namespaces of PyTorch's own operators, whose scratch memory `autofit_workers.tracing.recording.hidden` has
# or knowingly omits.
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
# Module with a library's operators, by their namespace.
_LIBRARIES = {
    "DaoAILab": "autofit_workers.tracing.kernels.causal_conv1d",
    "autofit_triton": "autofit_workers.tracing.kernels.triton_graphs",
    "bitsandbytes": "autofit_workers.tracing.kernels.bitsandbytes",
    "flash_attn": "autofit_workers.tracing.kernels.flash_attn2",
    "flash_attn_3": "autofit_workers.tracing.kernels.flash_attn3",
    "moe": "autofit_workers.tracing.kernels.fms",
    "quanto": "autofit_workers.tracing.kernels.quanto",
    "xformers_flash": "autofit_workers.tracing.kernels.xformers",
    "xformers_flash3": "autofit_workers.tracing.kernels.xformers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Operator of another library than PyTorch, with functions for its outputs and scratch memory.

    Attributes:
        outputs: returns fake outputs for a call; None if the operator has a fake function of its own.
        scratch: returns bytes of scratch memory, as one number or a sequence; None if there is none.
        by_name: whether both functions take all arguments by the names in the operator's schema.
        runs_python: whether the operator's own function runs instead: it is one of Python's
            (`torch.library.custom_op`) that calls PyTorch and launches kernels of Triton.
    """

    outputs: Outputs | None = None
    scratch: ScratchOf | None = None
    by_name: bool = False
    runs_python: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Place in a program at which an operator is registered.

    Attributes:
        file, line: file and line of the call that registers.
        module: identity of the module's namespace, which differs if the file is run again.
        is_prompt: whether the call was typed at a prompt or in a notebook, where it may be typed again.
    """

    file: str
    line: int
    module: int
    is_prompt: bool = False

    def replaces(self, earlier: Place) -> bool:
        """Whether a registration here only repeats the one at `earlier`, and so may replace it.

        That is the case for the same line of a file, for a file that is run again, and at a prompt.
        """
        if self.file == earlier.file:
            return self.line == earlier.line or self.module != earlier.module
        return self.is_prompt and earlier.is_prompt


class RegisteredTwiceError(ValueError):
    """Raised if an operator is registered at two different places of one program."""


@dataclass(frozen=True, slots=True)
class _Registration:
    kernel: Kernel
    place: Place
    program: int


class Registry:
    """Registered kernels by operator name: `library::operator` or `library::operator.overload`."""

    def __init__(self) -> None:
        self._registered: dict[str, _Registration] = {}
        self._program = 0

    def begin_program(self) -> None:
        """Begins another script or workload in this process, which may register the same operators again."""
        self._program += 1

    def add(self, name: str, kernel: Kernel, place: Place) -> None:
        """Registers a kernel under an operator's name.

        Raises:
            RegisteredTwiceError: the operator is registered already, elsewhere in the program.
        """
        name = name.removesuffix(".default")  # PyTorch leaves it out of the name as well
        before = self._registered.get(name)
        if before is not None and before.program == self._program and not place.replaces(before.place):
            raise RegisteredTwiceError(f"{before.place.file}:{before.place.line}")
        self._registered[name] = _Registration(kernel, place, self._program)

    def find(self, names: Sequence[str]) -> Kernel | None:
        """Kernel registered under one of `names`, the first that is registered; None without one.

        Users' registrations come before those of the files in this folder.
        """
        for name in names:
            if name in self._registered:
                return self._registered[name].kernel
        known = _known(names[0].partition("::")[0])
        return next((known[name] for name in names if name in known), None)


REGISTRY = Registry()  # one for the process, like PyTorch's registry of operators


def is_pytorchs(namespace: str) -> bool:
    """Whether the operators of a namespace are PyTorch's own."""
    return namespace in _PYTORCHS


def _known(namespace: str) -> dict[str, Kernel]:
    """Kernels of a library by operator name, from the library's file in this folder; empty without a file."""
    if namespace not in _LIBRARIES:
        return {}
    kernels: dict[str, Kernel] = importlib.import_module(_LIBRARIES[namespace]).KERNELS
    return kernels
