"""Extensions that libraries compile where they first use them, by `torch.utils.cpp_extension.load`.

Compiling wants a CUDA toolkit, and calling them a GPU. So a stand-in is loaded in the place of those that are
known, and nothing is compiled; others are loaded as ever.
"""

from __future__ import annotations

import importlib
from typing import Any

_HERE = "autofit_workers.tracing.kernels.stand_ins"
# Stand-in of an extension, by the name under which it is loaded, and the library that loads it.
_STAND_INS = {"fbd_cuda": (f"{_HERE}.fbd_cuda", "peft")}
_used: dict[str, None] = {}  # names of those that the current program called


def replace_load(cpp_extension: Any) -> None:
    """Makes `load` return the stand-in of an extension that has one, in this process for good."""
    load = cpp_extension.load

    def loaded(name: str, *args: Any, **options: Any) -> Any:
        return (
            importlib.import_module(_STAND_INS[name][0])
            if name in _STAND_INS
            else load(name, *args, **options)
        )

    cpp_extension.load = loaded


def begin_program() -> None:
    """Forgets which extensions an earlier script or workload in this process called."""
    _used.clear()


def use(name: str) -> None:
    """Remembers that a function of an extension was called."""
    _used[name] = None


def notes() -> tuple[str, ...]:
    """Notes for the user about extensions that a stand-in replaced, a sentence each."""
    return tuple(
        f"{_STAND_INS[name][1]} compiles {name} where it trains, and it is followed as if it were compiled: "
        f"without a CUDA toolkit there, {_STAND_INS[name][1]} warns and does something else"
        for name in _used
    )
