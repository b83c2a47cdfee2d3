"""Registry of device guards in libc10, by which C++ code sets devices and asks for streams.

It is an array of pointers, one for each device type, which the library exports under its C++ name.
`tests/versions/platforms.py` reads the wheels of other platforms, and checks the names and the layout that
this module relies on.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from autofit_workers.process.operating_system import library

__all__ = ["CUDA", "LIBRARY", "META", "NUM_GUARDS", "REGISTRY", "SYMBOLS", "XLA", "use_guard_of_meta"]

LIBRARY = "c10"  # library that has the registry; its prefix and ending depend on the platform
# Exported name of the registry, an array of pointers to guards by device type.
REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
# All names that autofit looks up in PyTorch's libraries, by library.
SYMBOLS = {LIBRARY: (REGISTRY,)}
# c10/core/DeviceType.h; the numbers are part of PyTorch's serialization format and do not move.
CUDA, XLA, META = 1, 9, 14
NUM_GUARDS = META + 1  # entries of the array that are read or written


def use_guard_of_meta(*device_types: int) -> None:
    """Gives device types the guard of `meta`, which does nothing, for good.

    Raises:
        RuntimeError: the registry is not found in this release of PyTorch.
    """
    path = Path(torch.__file__).parent / "lib" / library(LIBRARY)
    try:
        registry = (ctypes.c_void_p * NUM_GUARDS).in_dll(ctypes.CDLL(str(path)), REGISTRY)
    except (OSError, ValueError) as error:
        raise RuntimeError(
            f"no GPU can be simulated with PyTorch {torch.__version__}, as its device guards are elsewhere: "
            "install a supported release (`autofit doctor` lists them) or measure instead of predicting"
        ) from error
    for device_type in device_types:
        registry[device_type] = registry[META]
