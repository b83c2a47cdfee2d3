"""Random generators of the fake GPU: CPU generators whose device is `cuda`."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from autofit_workers.spec.pythons import Self

# GPU generators by the address of their C++ object, as operators get it in another Python object.
_OF_GPU: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def install(gpu: torch.device) -> None:
    """Makes `torch.Generator("cuda")` return a fake generator, in this process for good."""
    plain: Any = torch.Generator

    class OfAnyDevice(type(plain)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, plain)

    class Generator(plain, metaclass=OfAnyDevice):  # type: ignore[misc]
        named: torch.device

        def __new__(cls, device: Any = "cpu") -> Self:
            made: Self = super().__new__(cls)
            made.named = torch.device(device)
            if made.device == gpu:
                _OF_GPU[made._cdata] = made
            return made

        def __init__(self, device: Any = "cpu") -> None:
            pass

        @property
        def device(self) -> torch.device:
            return gpu if self.named.type == "cuda" else self.named

    module: Any = torch
    module.Generator = Generator


def require_same_device(generator: torch.Generator, device: torch.device) -> None:
    """Raises PyTorch's `RuntimeError` if a generator is not on `device` (ATen's `check_generator`)."""
    address: Any = generator
    found = "cuda" if address._cdata in _OF_GPU else "cpu"
    if found != device.type:
        raise RuntimeError(f"Expected a '{device.type}' device type for generator but found '{found}'")
