"""Devices of the compiler's fake tensors, as C++ and Python see them.

As for the tensors of `FakeGpuMode`, C++ is told that a tensor on `cuda:0` is on `xla:0`. The compiler has
fake modes and tensors of its own, so the answer is given here for every fake tensor. What C++ then asks for
on `xla:0`, such as a new tensor like another one, is made on `cuda:0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from autofit_workers.pytorch import inductor
from autofit_workers.pytorch.dispatch import DispatchKey, DispatchKeySet
from autofit_workers.pytorch.operators import OpOverload
from autofit_workers.tracing.fake.fake_gpu import TOLD, device_for_cpp
from autofit_workers.tracing.kernels.following import kernel_of, outputs_of

_DEVICE: Any = torch.Tensor.device
_ASKED = torch.ops.prim.device.default


def install() -> None:
    """Patches fake tensors and the compiler's modes in this process, for good."""
    handlers: Any = inductor.META_HANDLERS
    handlers[_ASKED] = lambda args: device_for_cpp(args[0])
    dispatched = inductor.FAKE_TENSOR_DISPATCH.get().__func__

    def of_tensor(
        cls: type, func: OpOverload, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return device_for_cpp(args[0]) if func is _ASKED else dispatched(cls, func, types, args, kwargs or {})

    inductor.FAKE_TENSOR_DISPATCH.replace(classmethod(of_tensor))
    inductor.MAKE_WRAPPER.replace(staticmethod(_with_autocast(inductor.MAKE_WRAPPER.get())))
    functional: Any = inductor.FunctionalTensor
    functional.device = property(_seen_by_python)
    functional.is_cuda = property(lambda tensor: tensor.device.type == "cuda")
    for name in (inductor.DISPATCH_OF_FAKE_MODE, inductor.DISPATCH_OF_PROXY_MODE):
        name.replace(_on_card(name.get()))
    inductor.DISPATCH_OF_FAKE_MODE.replace(_with_registered(inductor.DISPATCH_OF_FAKE_MODE.get()))


def _seen_by_python(tensor: torch.Tensor) -> torch.device:
    """Device of a wrapper for Python, which asks for the module of its type: `cuda`, not what C++ is told."""
    device: torch.device = _DEVICE.__get__(tensor)
    return torch.device("cuda", device.index or 0) if device.type == TOLD.type else device


def _with_autocast(make: Any) -> Any:
    """Maker of wrappers that gives functional tensors the dispatch key of CUDA's autocast.

    It gives such a tensor the keys of the device that C++ is told, and autocast would pass it over.
    """

    def made(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls is inductor.FunctionalTensor and any(map(_is_told, args)):
            args = tuple(
                each.add(DispatchKey.AutocastCUDA) if isinstance(each, DispatchKeySet) else each
                for each in args
            )
        return make(cls, *args, **kwargs)

    return made


def _is_told(value: object) -> bool:
    return isinstance(value, torch.device) and value.type == TOLD.type


def _on_card(dispatch: Any) -> Any:
    """Wrapper of a mode's dispatch function that makes tensors on `cuda` which C++ asks for on `xla`."""

    def dispatched(
        mode: Any, func: OpOverload, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        device = kwargs.get("device") if kwargs else None
        if isinstance(device, torch.device) and device.type == TOLD.type:
            kwargs = {**(kwargs or {}), "device": torch.device("cuda", device.index or 0)}
        return dispatch(mode, func, types, args, kwargs or {})

    return dispatched


def _with_registered(dispatch: Any) -> Any:
    """Wrapper of a fake mode's dispatch function that knows the outputs of other libraries' operators."""

    def dispatched(
        mode: Any, func: OpOverload, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kernel = kernel_of(func)
        if kernel is None or kernel.outputs is None:
            return dispatch(mode, func, types, args, kwargs or {})
        with mode:
            return outputs_of(kernel, func, args, dict(kwargs or {}))

    return dispatched
