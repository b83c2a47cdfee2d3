"""Lets a `DTensor` hold a fake tensor.

A `DTensor` wraps this rank's shard of a tensor. The fake device's mode leaves operators on `DTensor`s to that
class, which runs them on the shards. To find the shape of the whole result, the class also runs each operator
on tensors without memory, once for each combination of shapes; these runs are hidden from the mode, as they
allocate nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from autofit_workers.pytorch.dispatch import DispatchKey, DispatchKeySet, disable_current_modes, dispatch_keys
from autofit_workers.pytorch.tensors import make_wrapper_subclass
from autofit_workers.tracing.fake.fake_gpu import TOLD

_PHILOX_BYTES = 16  # state of a GPU's random generator: seed and offset
# A wrapper's dispatch keys follow from the device that C++ sees, XLA, so CUDA's autocast key has to be added.
_AUTOCAST = DispatchKeySet(DispatchKey.AutocastCUDA)
# Dispatch keys that `_dtensor__new__` copies from the shard (torch/csrc/autograd/python_variable.cpp).
_HANDED_ON = DispatchKeySet(DispatchKey.Conjugate).add(DispatchKey.Negative)


def _distributed(
    new: Callable[..., Any], cls: Any, local_tensor: torch.Tensor, spec: Any, *, requires_grad: bool = False
) -> Any:
    """New `DTensor` made as by `new`, but with CUDA's autocast key if the shard is on the GPU.

    Args:
        new: PyTorch's own `DTensor.__new__`.
    """
    if local_tensor.device.type != "cuda":
        return new(cls, local_tensor, spec, requires_grad=requires_grad)
    made: Any = make_wrapper_subclass(
        cls,
        spec.tensor_meta.shape,
        strides=spec.tensor_meta.stride,
        dtype=local_tensor.dtype,
        layout=local_tensor.layout,
        device=TOLD,
        requires_grad=requires_grad,
        _extra_dispatch_keys=_AUTOCAST | (dispatch_keys(local_tensor) & _HANDED_ON),
    )
    made._spec, made._local_tensor = spec, local_tensor
    return made


def _made_of(cls: Any, elem: torch.Tensor) -> Any:
    """New `AsyncCollectiveTensor` around `elem`; C++ sees it on the device on which it sees fake tensors."""
    on_gpu = elem.device.type == "cuda"
    made: Any = make_wrapper_subclass(
        cls,
        elem.size(),
        strides=elem.stride(),
        storage_offset=elem.storage_offset(),
        dtype=elem.dtype,
        layout=elem.layout,
        device=TOLD if on_gpu else elem.device,
        requires_grad=elem.requires_grad,
        _extra_dispatch_keys=_AUTOCAST if on_gpu else None,
    )
    made.elem, made.completed = elem, False
    return made


def install() -> None:
    """Lets `DTensor` and `AsyncCollectiveTensor` hold fake tensors in this process, for good."""
    from torch.distributed.tensor import DTensor

    from autofit_workers.pytorch.collectives import AsyncCollectiveTensor
    from autofit_workers.pytorch.dtensors import PROPAGATE_SHAPES, replace_device_state

    dtensor, awaited = DTensor, AsyncCollectiveTensor  # type: Any, Any
    # C++ would report the device XLA; see `fake_gpu`.
    dtensor.device = property(lambda self: self._local_tensor.device)
    awaited.device = property(lambda self: self.elem.device)
    for kind in (dtensor, awaited):
        kind.is_cuda = property(lambda self: self.device.type == "cuda")
    dtensor.__new__ = staticmethod(functools.partial(_distributed, dtensor.__new__))
    awaited.__new__ = _made_of
    replace_device_state(lambda: torch.zeros(_PHILOX_BYTES, dtype=torch.uint8))
    propagate = PROPAGATE_SHAPES.get()

    def unobserved(self: Any, op_schema: Any) -> Any:
        with disable_current_modes():
            return propagate(self, op_schema)

    PROPAGATE_SHAPES.replace(unobserved)
