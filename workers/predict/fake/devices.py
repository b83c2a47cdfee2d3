"""Names the GPU in full, `cuda:0`, wherever Python code names it less exactly.

`"cuda"`, `0` and `.cuda()` mean the current device, for which C++ asks a device guard that knows
of no GPU; and it does not see that a tensor is there already, for it was told another device
(see `fake_gpu`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.overrides import TorchFunctionMode

GPU = torch.device("cuda:0")


class NamedDevices(TorchFunctionMode):
    """Names the device in every call that leaves PyTorch to ask for the current one."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _named(kwargs["device"])}
        elif func is torch.Tensor.new_tensor:
            kwargs = {**kwargs, "device": args[0].device}
        if func is torch.Tensor.to and len(args) > 1:
            args = (args[0], _named(args[1]), *args[2:])
        elif func is torch.Tensor.cuda:
            func, args, kwargs = torch.Tensor.to, (args[0], GPU), {}
        if func is torch.Tensor.to and _is_there_already(args[0], args[1:], kwargs):
            return args[0]
        if func is torch.Tensor.numpy and isinstance(args[0], FakeTensor):
            raise DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)
        return func(*args, **kwargs)


def _is_there_already(tensor: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `to` gives the tensor itself."""
    if not isinstance(tensor, FakeTensor) or "copy" in kwargs or len(args) > 3:
        return False
    device, dtype, _non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    return device in (None, tensor.fake_device) and dtype in (None, tensor.dtype) and memory_format is None


def _named(device: Any) -> Any:
    """A device's full name; what is none (`to` also takes types and tensors) as it is."""
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cuda", device)
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type == "cuda" and device.index is None:
        return GPU
    return device
